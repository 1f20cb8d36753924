"""`htam memory`: stats, list, show and graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from htam_agent.cli.options import JsonOption, MemoryOption
from htam_agent.cli.output import print_json
from htam_agent.errors import StoreError

if TYPE_CHECKING:
    from htam_agent.memory.store import MemoryStore

memory_app = typer.Typer(
    name="memory", help="Look into the memory: what it knows and what it learned.", no_args_is_help=True
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

    with _opened(memory) as store:
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

    with _opened(memory) as store:
        found = listing(store, kind, backend)
    if as_json:
        print_json(found.model_dump_json(by_alias=True))
        return 0
    for line in found.records:
        typer.echo(f"{line.kind[:-1] if line.kind != 'strategies' else 'strategy':<11} {line.id:<44} {line.summary}")
    return 0


@memory_app.command("show")
def show_command(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Of a record, as `htam memory list` prints it.")],
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show one record whole."""
    from htam_agent.memory.view import show

    with _opened(memory) as store:
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
def graph_command(memory: MemoryOption = None, as_json: JsonOption = False) -> int:
    """Draw directions and transitions as a Mermaid diagram, with what was measured."""
    from htam_agent.memory.view import drawing

    with _opened(memory) as store:
        found = drawing(store)
    print_json(found.model_dump_json(by_alias=True) if as_json else found.mermaid)
    return 0


@contextmanager
def _opened(memory: Path | None) -> Iterator[MemoryStore]:
    """The store that option and settings name; what it could not do on opening is told on stderr."""
    from htam_agent.services import open_memory
    from htam_agent.settings import Settings

    if memory is not None and not memory.is_dir():
        # A run makes its memory; a question about one must not, or a typing error would be answered with an empty one.
        raise StoreError(
            f"There is no memory at {str(memory)!r}.",
            "Check the path; `htam optimize --memory DIR` makes one.",
            "memory-missing",
        )
    with open_memory(Settings.load({"memory": memory} if memory else {})) as store:
        for note in store.notes:
            typer.echo(f"note: {note}", err=True)
        yield store
