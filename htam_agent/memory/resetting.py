"""Beginning anew: the old folder is put aside, and the seed is built in a new one."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import Field

from htam_agent.errors import StoreError
from htam_agent.memory.chroma import Collections
from htam_agent.memory.connection import DATABASE, LOCK, disk_error, take_lock
from htam_agent.memory.sharing import connect_server, disconnect
from htam_agent.memory.store import LOCK_WAIT_SECONDS, MemoryStore
from htam_agent.words import Record

OWN = re.compile(rf"{re.escape(DATABASE)}(-journal|-wal|-shm)?|{re.escape(LOCK)}|[0-9a-f]{{8}}(-[0-9a-f]{{4,12}}){{4}}")
"""Names of what lies in a memory's folder: the database, the lock, and the folders of Chroma's indexes."""


class ResetReport(Record):
    """What `htam memory reset` prints with --json."""

    schema_: Literal["htam.memory/1"] = Field("htam.memory/1", alias="schema", serialization_alias="schema")
    place: str
    aside: str | None
    """Where the old memory lies now; null when there was none, or it was removed."""
    directions: int
    strategies: int
    transitions: int


def reset_folder(
    folder: Path,
    *,
    discard: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    now: time.struct_time | None = None,
    reopen: Callable[[], MemoryStore] | None = None,
) -> ResetReport:
    """A memory with the seed alone in `folder`. What lay there, damaged or not, goes to a folder beside it, or with
    `discard` away. `reopen` makes the new memory; None: with the default embedder.

    Raises StoreError when the folder holds other files, is held by another process, or cannot be moved.
    """
    aside: Path | None = None
    if folder.exists():
        with _locked(folder, wait_seconds):
            aside = _put_aside(folder, now or time.gmtime())
    if aside is not None and discard:
        shutil.rmtree(aside)
        aside = None
    with reopen() if reopen else MemoryStore.open(folder, wait_seconds=wait_seconds) as store:
        return _report(store, aside)


def reset_server(url: str, reopen: Callable[[], MemoryStore] | None = None) -> ResetReport:
    """A memory with the seed alone on the server at `url`; what was there is removed. `reopen`: see reset_folder."""
    connection = connect_server(url)
    try:
        with connection.exclusive(writing=True) as client:
            Collections(connection.place, {}, {}, default=("", 0)).drop(client)
    finally:
        disconnect(connection)
    with reopen() if reopen else MemoryStore.open(None, url) as store:
        return _report(store, None)


def _report(store: MemoryStore, aside: Path | None) -> ResetReport:
    counts = store.counts()
    return ResetReport(
        schema_="htam.memory/1",
        place=store.place,
        aside=str(aside) if aside is not None else None,
        directions=counts["directions"],
        strategies=counts["strategies"],
        transitions=counts["transitions"],
    )


def _put_aside(folder: Path, now: time.struct_time) -> Path | None:
    """The folder's new name; None where it held no memory yet."""
    entries = sorted(entry.name for entry in folder.iterdir())
    foreign = [name for name in entries if not OWN.fullmatch(name)]
    if foreign:
        raise StoreError(
            f"The folder {str(folder)!r} holds other files than a memory's ({foreign[0]!r}, for one); nothing was "
            "moved.",
            "Give the folder of a memory (the setting `memory`), or move those files away.",
            "memory-foreign",
        )
    if DATABASE not in entries:
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S", now)
    for number in range(1000):
        aside = folder.with_name(f"{folder.name}-before-{stamp}" + (f"-{number}" if number else ""))
        if not aside.exists():
            break
    try:
        return folder.rename(aside)
    except OSError as error:
        raise disk_error(f"the folder {str(folder.parent)!r}", error) from error


@contextmanager
def _locked(folder: Path, wait_seconds: float) -> Iterator[None]:
    """Alone in the folder, whatever is in it. Whoever waits for this lock finds that its file has moved, and takes the
    new folder's (connection.py)."""
    if not folder.is_dir():
        raise StoreError(f"{str(folder)!r} is no folder.", "Give a folder (the setting `memory`).", "memory-folder")
    if not (folder / DATABASE).exists():
        yield
        return
    try:
        lock = (folder / LOCK).open("a+")
    except OSError as error:
        raise disk_error(f"the memory folder {str(folder)!r}", error) from error
    with lock:
        take_lock(lock, f"the memory folder {str(folder)!r}", wait_seconds)
        yield
