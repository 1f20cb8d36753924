"""Beginning anew: the seed is built in a new folder, which takes the place of the old one; that is put aside."""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
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
    reopen: Callable[[Path], MemoryStore] | None = None,
) -> ResetReport:
    """A memory with the seed alone in `folder` (of a link: where it leads to). What lay there, damaged or not, goes to
    a folder beside it, or with `discard` away. `reopen` makes the new memory in the folder that it is given; None: with
    the default embedder. Who waits to write meanwhile goes on in the new one.

    Raises StoreError when the folder holds other files, is held by another process, or cannot be moved.
    """
    folder = folder.expanduser().resolve()
    reopen = reopen or (lambda place: MemoryStore.open(place, wait_seconds=wait_seconds))
    if folder.exists():
        with _locked(folder, wait_seconds):
            if _holds_memory(folder):
                report, aside = _swapped(folder, reopen, now or time.gmtime())
                if discard:
                    shutil.rmtree(aside)
                    return report
                return report.model_copy(update={"aside": str(aside)})
    with reopen(folder) as store:
        return _report(store)


def _swapped(folder: Path, reopen: Callable[[Path], MemoryStore], now: time.struct_time) -> tuple[ResetReport, Path]:
    """Builds the new memory beside the old one, whose lock is held, and exchanges them: whoever gets that lock next
    finds the new one whole. Returns the old one's new place too. The old one stays where it is when this fails."""
    aside = _free_name(folder, f"before-{time.strftime('%Y%m%d-%H%M%S', now)}")
    try:
        new = Path(tempfile.mkdtemp(prefix=f"{folder.name}-new-", dir=folder.parent))
    except OSError as error:
        raise disk_error(f"the folder {str(folder.parent)!r}", error) from error
    try:
        new.chmod(folder.stat().st_mode & 0o777)
        with reopen(new) as store:
            report = _report(store).model_copy(update={"place": f"the memory folder {str(folder)!r}"})
        folder.rename(aside)
        try:
            new.rename(folder)
        except OSError:
            aside.rename(folder)
            raise
    except OSError as error:
        raise disk_error(f"the folder {str(folder.parent)!r}", error) from error
    finally:
        if new.exists():
            shutil.rmtree(new)
    return report, aside


def _free_name(folder: Path, ending: str) -> Path:
    names = (f"{folder.name}-{ending}" + (f"-{number}" if number else "") for number in itertools.count())
    return next(path for path in map(folder.with_name, names) if not path.exists())


def reset_server(url: str, reopen: Callable[[], MemoryStore] | None = None) -> ResetReport:
    """A memory with the seed alone on the server at `url`; what was there is removed. `reopen` makes the new memory;
    None: with the default embedder."""
    connection = connect_server(url)
    try:
        with connection.exclusive(writing=True) as client:
            Collections(connection.place, {}, {}, default=("", 0)).drop(client)
    finally:
        disconnect(connection)
    with reopen() if reopen else MemoryStore.open(None, url) as store:
        return _report(store)


def _report(store: MemoryStore) -> ResetReport:
    counts = store.counts()
    return ResetReport(
        schema_="htam.memory/1",
        place=store.place,
        aside=None,
        directions=counts["directions"],
        strategies=counts["strategies"],
        transitions=counts["transitions"],
    )


def _holds_memory(folder: Path) -> bool:
    """Raises StoreError when the folder holds other files."""
    entries = sorted(entry.name for entry in folder.iterdir())
    foreign = [name for name in entries if not OWN.fullmatch(name)]
    if foreign:
        raise StoreError(
            f"The folder {str(folder)!r} holds other files than a memory's ({foreign[0]!r}, for one); nothing was "
            "moved.",
            "Give the folder of a memory (the setting `memory`), or move those files away.",
            "memory-foreign",
        )
    return DATABASE in entries


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
