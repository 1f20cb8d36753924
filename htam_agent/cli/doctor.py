"""`htam doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from htam_agent.cli.options import JsonOption
from htam_agent.cli.output import print_json

if TYPE_CHECKING:
    from htam_agent.doctor import Report


def doctor_command(as_json: JsonOption = False) -> int:
    """Show what this machine can do, and why not the rest. Exit 0 when at least one backend works, else 3."""
    from htam_agent.doctor import examine

    report = examine()
    if as_json:
        print_json(report.model_dump_json(by_alias=True))
    else:
        _print(report)
    return 0 if report.backends else 3


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console = console if console.is_terminal else Console(width=160)
    table = Table(box=None, pad_edge=False, show_header=False)
    colours = {"ok": "green", "missing": "red", "off": "dim", "warning": "yellow"}
    for line in report.checks:
        fact = Text(line.fact)
        if line.remedy:
            fact.append(f"\n-> {line.remedy}", style="dim")
        table.add_row(Text(line.state, style=colours[line.state]), Text(line.name), fact)
    console.print(table)
    if report.backends:
        typer.echo(f"Backends that work here: {', '.join(report.backends)}.")
    else:
        typer.echo("No backend works here: install g++ with OpenMP, or an NVIDIA driver and the CUDA extra.")
