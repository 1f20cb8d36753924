"""How the commands about the memory open it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from htam_agent.errors import StoreError

if TYPE_CHECKING:
    from htam_agent.memory.store import MemoryStore
    from htam_agent.settings import Settings


def settings_of(memory: Path | None) -> Settings:
    """The settings, with the folder of the option where it was given."""
    from htam_agent.settings import Settings

    return Settings.load({"memory": memory} if memory else {})


@contextmanager
def opened(memory: Path | None, *, make: bool = False, own_strategies: bool = True) -> Iterator[MemoryStore]:
    """The store that option and settings name; what it could not do on opening is told on stderr. `make`: a folder that
    is not there is made. `own_strategies`: with those of the settings."""
    from htam_agent.services import open_memory

    if memory is not None and not make and not memory.is_dir():
        # A run makes its memory; a question about one must not, or a typing error would be answered with an empty one.
        raise StoreError(
            f"There is no memory at {str(memory)!r}.",
            "Check the path; `htam optimize --memory DIR` makes one.",
            "memory-missing",
        )
    with open_memory(settings_of(memory), own_strategies=own_strategies) as store:
        for note in store.notes:
            typer.echo(f"note: {note}", err=True)
        yield store
