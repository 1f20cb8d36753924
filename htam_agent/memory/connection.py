"""Ways to the Chroma database: a folder that several processes share in turn, or a server."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO
from urllib.parse import urlsplit

from htam_agent.errors import InfrastructureError, StoreError

if TYPE_CHECKING:
    import httpx
    from chromadb.api import ClientAPI

DATABASE = "chroma.sqlite3"
LOCK = "htam.lock"
POLL_SECONDS = 0.001
ANSWER_SECONDS = 60.0
"""For one answer of a server; Chroma's own client waits for ever."""

ELSEWHERE = (
    "Restore it from a copy, give another folder (the setting `memory`), or begin anew with `htam memory reset`, which "
    "keeps the old one."
)


class Connection(Protocol):
    """`place` names the database in messages. `alone`: `exclusive` keeps other processes out; a server orders single
    writes itself, and lets others write in between."""

    place: str
    alone: bool

    @contextmanager
    def exclusive(self, *, writing: bool = False) -> Iterator[ClientAPI]:
        """A client that sees everything written so far, until the block ends. `writing`: something may be written."""
        ...

    @property
    def version(self) -> str | None:
        """Inside `exclusive`: a word that is another one after anybody's write; None where the database cannot tell."""
        ...

    def close(self) -> None: ...


class EmbeddedFolder:
    """An embedded database. Chroma's embedded client is made for one process: it keeps its vector index in memory and
    writes it over whatever another process wrote. So every access holds a file lock, and a client whose folder was used
    by another process since is opened anew before it does anything. A process has one for each folder (sharing.py).

    The lock file's first line names the process whose client was used last, its second line counts the writes.
    """

    alone = True

    def __init__(self, folder: Path, wait_seconds: float) -> None:
        """`folder` is one that `prepare` found fit."""
        self.folder = folder
        self.place = f"the memory folder {str(folder)!r}"
        self.wait_seconds = wait_seconds
        self._process = os.getpid()
        self._token = f"{self._process}-{uuid.uuid4().hex}"
        self._threads = threading.RLock()
        self._client: ClientAPI | None = None
        self._lock_file = (folder / LOCK).open("a+")
        self._writes = ""
        self._depth = 0
        """Of `exclusive` blocks within each other: the outermost one has the lock."""

    @property
    def version(self) -> str | None:
        return self._writes

    @contextmanager
    def exclusive(self, *, writing: bool = False) -> Iterator[ClientAPI]:
        if os.getpid() != self._process:
            raise StoreError(
                f"{_upper(self.place)} was opened before this process was forked, and cannot be used in it.",
                "Start the process by spawn, and open the memory in it.",
                "memory-forked",
            )
        with self._threads:
            if not self._depth:
                self._wait()
            self._depth += 1
            try:
                with translated(self.place):
                    yield self._fresh_client(writing)
            finally:
                self._depth -= 1
                if not self._depth:
                    fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def close(self) -> None:
        with self._threads:
            if self._client is not None:
                _close(self._client)
                self._client = None
            with translated(self.place):
                self._lock_file.close()

    def _wait(self) -> None:
        while True:
            take_lock(self._lock_file, self.place, self.wait_seconds)
            if self._is_in_place():
                return
            self._take_the_new_lock()

    def _is_in_place(self) -> bool:
        """Whether the locked file still is the folder's: a reset moves the folder away with the lock file in it."""
        try:
            found = (self.folder / LOCK).stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._lock_file.fileno())
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def _take_the_new_lock(self) -> None:
        try:
            opened = (self.folder / LOCK).open("a+")
        except FileNotFoundError:
            raise StoreError(
                f"{_upper(self.place)} was moved or removed while it was open.",
                "Put it back, or start again: a new memory is then made.",
                "memory-missing",
            ) from None
        self._lock_file.close()
        self._lock_file = opened

    def _fresh_client(self, writing: bool) -> ClientAPI:
        """The client, opened anew when another process used the folder since. The count goes up before a write: one
        that is cut short has been announced."""
        self._lock_file.seek(0)
        user, _, count = self._lock_file.read().partition("\n")
        fresh = self._client is None or user != self._token
        # Where no count is found, a number is taken that no earlier count can have reached.
        writes = (int(count) if count.isdecimal() else time.time_ns()) + writing
        if fresh or writing or not count.isdecimal():
            self._lock_file.seek(0)
            self._lock_file.truncate()
            self._lock_file.write(f"{self._token}\n{writes}")
            self._lock_file.flush()
        self._writes = str(writes)
        if fresh and self._client is not None:
            _close(self._client)
            self._client = None
        if self._client is None:
            self._client = _persistent_client(self.folder)
        return self._client


def take_lock(lock_file: TextIO, place: str, wait_seconds: float) -> None:
    """Locks the open file against every other process, until it is unlocked or closed, or this process dies.

    Raises StoreError when another one has held it for so long.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StoreError(
                    f"Another process has held {place} for {wait_seconds:g} seconds.",
                    "Wait for it or end it; for many writers at once run `chroma run` and set HTAM_CHROMA_URL.",
                    "memory-locked",
                ) from None
            time.sleep(POLL_SECONDS)
        else:
            return


class Server:
    """A Chroma server, which orders the writers itself."""

    alone = False
    version: str | None = None

    def __init__(self, url: str) -> None:
        """Raises StoreError for a URL of another form, InfrastructureError when no server answers there."""
        self.place = f"the Chroma server {url}"
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StoreError(f"HTAM_CHROMA_URL is {url!r}.", "Give it the form http://host:port.", "memory-server-url")
        self._threads = threading.RLock()
        secure = parts.scheme == "https"
        self._client = _http_client(self.place, parts.hostname, parts.port or (443 if secure else 8000), secure)

    @contextmanager
    def exclusive(self, *, writing: bool = False) -> Iterator[ClientAPI]:
        with self._threads, translated(self.place):
            yield self._client

    def close(self) -> None:
        _close(self._client)


def prepare(folder: Path, wait_seconds: float = 30.0) -> None:
    """Makes sure that `folder` is one where a memory lies or can lie, without changing one that is neither.

    Raises StoreError: not a folder, not writable, files of something else in it, a database that is damaged, or one
    that another process has held for `wait_seconds`.
    """
    place = f"the memory folder {str(folder)!r}"
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{_upper(place)} is a file.", "Give a folder (the setting `memory`).", "memory-folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entries = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise _unwritable(place, error.strerror or str(error)) from error
    if DATABASE not in entries and entries - {LOCK}:
        raise StoreError(
            f"{_upper(place)} holds other files ({sorted(entries)[0]!r}, for one) and no memory.",
            "Give an empty or a new folder (the setting `memory`).",
            "memory-foreign",
        )
    for path in (folder, folder / LOCK, folder / DATABASE):
        if path.exists() and not os.access(path, os.W_OK):
            raise _unwritable(place, f"{path.name!r} is read-only")
    if DATABASE in entries:
        _check_database(folder, place, wait_seconds)


def _check_database(folder: Path, place: str, wait_seconds: float) -> None:
    """Opened for writing and under the lock: what a process that was killed within a write left (a journal beside the
    database) is rolled back by SQLite then, and cannot be read otherwise."""
    with ExitStack() as held:
        # Where no lock file is, nobody writes by turns, and a folder that is refused gets none.
        if (folder / LOCK).exists():
            try:
                lock = held.enter_context((folder / LOCK).open("a+"))
            except OSError as error:
                raise disk_error(place, error) from error
            take_lock(lock, place, wait_seconds)
        try:
            connection = sqlite3.connect(f"{(folder / DATABASE).as_uri()}?mode=rw", uri=True, timeout=10.0)
            try:
                answer = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise _database_error(place, error) from error
    if answer != "ok":
        raise _corrupt(place, answer)


def _database_error(place: str, error: sqlite3.Error) -> StoreError:
    """Only what SQLite itself calls corrupt is damaged; a sound database can also be busy, unreadable or on a full
    disk."""
    # The lowest byte is the kind of the error, the others tell its cases apart. Misuse of the module has no code.
    kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _corrupt(place, str(error))
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"The database {DATABASE!r} in {place} is in use by a program that does not take turns ({error}).",
            "End it (`chroma run` on the same folder, for one), or give HTAM_CHROMA_URL.",
            "memory-locked",
        )
    if kind == sqlite3.SQLITE_FULL:
        return disk_error(place, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    return _unwritable(place, f"its database {DATABASE!r} cannot be opened ({error})")


def _corrupt(place: str, answer: str) -> StoreError:
    return StoreError(
        f"The database {DATABASE!r} in {place} is damaged ({answer}); it was left as it is.",
        ELSEWHERE,
        "memory-corrupt",
    )


def _unwritable(place: str, reason: str) -> StoreError:
    return StoreError(
        f"{_upper(place)} cannot be written: {reason}.",
        "Give a folder that this user may write (the setting `memory`).",
        "memory-unwritable",
    )


def _persistent_client(folder: Path) -> ClientAPI:
    import chromadb
    from chromadb.config import Settings

    return chromadb.PersistentClient(str(folder), settings=Settings(anonymized_telemetry=False))


def _http_client(place: str, host: str, port: int, secure: bool) -> ClientAPI:
    import chromadb
    from chromadb.config import Settings

    try:
        client = chromadb.HttpClient(host=host, port=port, ssl=secure, settings=Settings(anonymized_telemetry=False))
    except ValueError as error:
        raise InfrastructureError(
            f"{_upper(place)} does not answer.", "Start `chroma run`, or unset HTAM_CHROMA_URL.", "memory-server"
        ) from error
    for session in _sessions(client):
        session.timeout = ANSWER_SECONDS
    return client


def _close(client: ClientAPI) -> None:
    """Chroma annotates its constructors with the interface, which has no `close`; what they return has one. It leaves
    the sockets to a server open, so they are closed here."""
    from chromadb.api.client import Client

    sessions = _sessions(client)
    if isinstance(client, Client):
        client.close()
    for session in sessions:
        session.close()


def _sessions(client: ClientAPI) -> list[httpx.Client]:
    """The HTTP sessions of a client of a server, none for an embedded one. Chroma has no public way to them."""
    from chromadb.api.client import AdminClient, Client
    from chromadb.api.fastapi import FastAPI

    if not isinstance(client, Client):
        return []
    servers: list[object] = [client._server]
    if isinstance(client._admin_client, AdminClient):
        servers.append(client._admin_client._server)
    return [server._session for server in servers if isinstance(server, FastAPI)]


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Chroma's errors and a full disk as StoreError, those of the way to a server as InfrastructureError."""
    import httpx
    from chromadb.errors import ChromaError

    try:
        yield
    except ChromaError as error:
        message = f"{_upper(place)} refused an operation: {error}."
        raise StoreError(message, f"Nothing more was changed. {ELSEWHERE}", "memory-refused") from error
    except OSError as error:
        raise disk_error(place, error) from error
    except httpx.HTTPError as error:
        raise InfrastructureError(
            f"{_upper(place)} stopped answering: {error}.",
            "Start `chroma run` again, or unset HTAM_CHROMA_URL.",
            "memory-server",
        ) from error


def disk_error(place: str, error: OSError) -> StoreError:
    """The sentence for a folder that takes no more, or fails."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StoreError(
        f"{_upper(place)} cannot be written: {error.strerror or error}.",
        "Free some space, or give another folder (the setting `memory`); what was stored before is kept."
        if full
        else ELSEWHERE,
        "disk-full" if full else "memory-folder",
    )


def _upper(place: str) -> str:
    return place[0].upper() + place[1:]
