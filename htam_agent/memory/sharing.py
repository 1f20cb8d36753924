"""One connection for each place in a process: Chroma shares its clients by place, too, and one store must not close
what another still uses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from htam_agent.memory.connection import Connection, EmbeddedFolder, Server, prepare


@dataclass
class _Shared:
    connection: Connection
    users: int = 0


_places: dict[str, _Shared] = {}
_lock = threading.Lock()


def connect_folder(folder: Path, wait_seconds: float) -> Connection:
    """This process's connection to the embedded database in `folder`, which is made when it is not there.

    Raises StoreError when the folder cannot be used; it is then left as it was.
    """
    folder = folder.expanduser().absolute()
    prepare(folder, wait_seconds)
    return _connect(str(folder.resolve()), lambda: EmbeddedFolder(folder, wait_seconds))


def connect_server(url: str) -> Connection:
    """This process's connection to the server at `url`. Raises StoreError, InfrastructureError: see Server."""
    return _connect(url, lambda: Server(url))


def disconnect(connection: Connection) -> None:
    """Ends one user's share; with the last one the connection is closed."""
    with _lock:
        key, shared = next((key, shared) for key, shared in _places.items() if shared.connection is connection)
        shared.users -= 1
        if shared.users == 0:
            del _places[key]
            connection.close()


def _connect(key: str, make: Callable[[], Connection]) -> Connection:
    with _lock:
        shared = _places.get(key) or _Shared(make())
        _places[key] = shared
        shared.users += 1
        return shared.connection
