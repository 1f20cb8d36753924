"""`htam memory`: the app, and the commands that only look: stats, list, show and graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from htam_agent.cli import memory_changes
from htam_agent.cli.memory_store import opened
from htam_agent.cli.options import BackendOption, JsonOption, MemoryOption, PrecisionOption
from htam_agent.cli.output import print_json
from htam_agent.plain_text import plain_line, plain_whole

memory_app = typer.Typer(
    name="memory", help="The memory: what it knows, what it learned, and what becomes of it.", no_args_is_help=True
)

# Spelled out, since typer reads them at import and the records behind them are not light.
KindOption = Annotated[
    Literal["directions", "strategies", "transitions", "experiences"] | None,
    typer.Option("--kind", help="Only records of this kind."),
]
OnlyBackendOption = Annotated[
    Literal["cuda", "cpp"] | None, typer.Option("--backend", help="Leave out what is for the other backend.")
]


@memory_app.command("stats")
def stats_command(memory: MemoryOption = None, as_json: JsonOption = False) -> int:
    """Count the records."""
    from htam_agent.memory.view import stats

    with opened(memory) as store:
        found = stats(store)
        place = store.place
    if as_json:
        print_json(found.model_dump_json(by_alias=True))
        return 0
    typer.echo(f"In {place}:")
    for kind, count in found.model_dump(exclude={"schema_"}).items():
        typer.echo(f"  {kind:<12} {count:>7}")
    return 0


@memory_app.command("list")
def list_command(
    kind: KindOption = None,
    backend: OnlyBackendOption = None,
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """List the records with a line each."""
    from htam_agent.memory.view import listing

    with opened(memory) as store:
        found = listing(store, kind, backend)
    if as_json:
        print_json(found.model_dump_json(by_alias=True))
        return 0
    for line in found.records:
        kind_word = line.kind[:-1] if line.kind != "strategies" else "strategy"
        # Packs bring others' words, which may hold sequences of a terminal.
        typer.echo(f"{kind_word:<11} {plain_line(line.id):<44} {plain_line(line.summary)}")
    return 0


@memory_app.command("show")
def show_command(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Of a record, as `htam memory list` prints it.")],
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show one record whole."""
    from htam_agent.memory.view import show

    with opened(memory) as store:
        found = show(store, identifier)
    if as_json:
        print_json(found.model_dump_json(by_alias=True))
        return 0
    import yaml

    typer.echo(
        yaml.safe_dump(found.record.model_dump(mode="json", exclude_none=True), sort_keys=False, width=110).rstrip()
    )
    return 0


@memory_app.command("graph")
def graph_command(
    out: Annotated[
        Path | None, typer.Option("--out", help="Picture to write: .svg, .png or .mmd (Mermaid).", show_default=False)
    ] = None,
    backend: OnlyBackendOption = None,
    device: Annotated[str | None, typer.Option("--device", help="Only steps on this device or architecture.")] = None,
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Draw directions, strategies and transitions with what was measured: a picture, or Mermaid on stdout."""
    from htam_agent.memory.graph_facts import graph_facts
    from htam_agent.memory.picture import draw
    from htam_agent.memory.view import MemoryDrawing, mermaid

    with opened(memory) as store:
        facts = graph_facts(store, backend, device)
    text = mermaid(facts)
    if out is not None:
        draw(facts, out)
    if as_json:
        found = MemoryDrawing(schema_="htam.memory/1", mermaid=text, out=str(out) if out else None)
        print_json(found.model_dump_json(by_alias=True))
    else:
        typer.echo(text if out is None else f"The graph of {len(facts.directions)} directions is drawn in {out}")
    return 0


@memory_app.command("why")
def why_command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="FILE, FILE:Class or pkg.mod:factory.")],
    backend: BackendOption = None,
    precision: PrecisionOption = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the exploration; 0 unless it is set.")] = None,
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say what would be chosen first for a task, and why. The task is loaded and traced in a worker."""
    from htam_agent.memory.why import explain_task, in_words
    from htam_agent.settings import Settings
    from htam_agent.task import Task

    given = {"backend": backend, "precision": precision, "seed": seed, "memory": memory}
    settings = Settings.load({name: value for name, value in given.items() if value is not None})
    parsed = Task.parse(task)
    with opened(memory) as store:
        found = explain_task(parsed, store, settings)
    if as_json:
        print_json(found.model_dump_json(by_alias=True))
        return 0
    for line in in_words(found):
        typer.echo(plain_whole(line))
    return 0


memory_app.command("export")(memory_changes.export_command)
memory_app.command("import")(memory_changes.import_command)
memory_app.command("merge")(memory_changes.merge_command)
memory_app.command("prune")(memory_changes.prune_command)
memory_app.command("remove")(memory_changes.remove_command)
memory_app.command("reset")(memory_changes.reset_command)
