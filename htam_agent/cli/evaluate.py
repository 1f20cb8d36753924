"""`htam evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from htam_agent.cli.options import (
    BackendOption,
    CompileBaselineOption,
    JsonOption,
    LogFormatOption,
    PolicyOption,
    PrecisionOption,
    ProtocolOption,
)
from htam_agent.cli.output import print_json

if TYPE_CHECKING:
    from htam_agent.judging import Evaluation


def evaluate_command(
    task: Annotated[str, typer.Argument(help="FILE, FILE:Class or pkg.mod:factory.")],
    kernels: Annotated[list[Path], typer.Argument(help="Kernel files with ModelNew; each is judged on its own.")],
    backend: BackendOption = None,
    precision: PrecisionOption = None,
    protocol: ProtocolOption = None,
    policy: PolicyOption = None,
    compile_baseline: CompileBaselineOption = None,
    log_format: LogFormatOption = None,
    as_json: JsonOption = False,
) -> int:
    """Judge kernel files against a task: correct on hidden inputs or not, and how fast."""
    from htam_agent.judging import evaluate_kernels
    from htam_agent.logging import set_up_logging
    from htam_agent.settings import Settings
    from htam_agent.task import Task

    given = {
        "backend": backend, "precision": precision, "protocol": protocol, "policy": policy,
        "compile_baseline": compile_baseline, "log_format": log_format,
    }  # fmt: skip
    settings = Settings.load({name: value for name, value in given.items() if value is not None})
    set_up_logging(settings.log_level, settings.log_format)
    worst = 0
    for evaluation in evaluate_kernels(Task.parse(task), kernels, settings):
        if as_json:
            print_json(evaluation.to_json())
        else:
            _print(evaluation)
        worst = worst if evaluation.verdict == "correct" else 1
    return worst


def _print(evaluation: Evaluation) -> None:
    best = evaluation.speedup.best
    speed = f", {best:.3f}x over best" if best is not None else ""
    interval = evaluation.interval
    between = f" (interval {interval.low:.3f} to {interval.high:.3f})" if interval else ""
    typer.echo(f"{evaluation.kernel}: {evaluation.verdict} at {evaluation.stage}{speed}{between}")
    if evaluation.reason:
        typer.echo(f"  {evaluation.reason}")
    for check in evaluation.checks:
        typer.echo(f"  {'ok ' if check.passed else 'NO '} {check.name}" + (f": {check.detail}" if check.detail else ""))
