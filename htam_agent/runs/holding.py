"""One process drives a run at a time: two would both pay for its steps and write each other's files."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from typing import TYPE_CHECKING

from htam_agent.errors import RunError
from htam_agent.runs.folder import write_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from htam_agent.runs.folder import RunFolder

LOCK = "lock"


@contextmanager
def held(folder: RunFolder) -> Iterator[None]:
    """Nobody else, thread or process, drives this run meanwhile. The lock ends with the process, however it ends.

    Raises RunError when the run is under way elsewhere, or its folder cannot be written.
    """
    path = folder.path(LOCK)
    try:
        file = path.open("a")
    except OSError as error:
        raise write_error(path, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"The run in {str(folder.root)!r} is under way already: another process or thread drives it.",
                f"Wait for its end, or stop it, then go on with `htam resume {folder.root}`.",
                "run-under-way",
            ) from error
        except OSError as error:
            raise write_error(path, error) from error
        yield
