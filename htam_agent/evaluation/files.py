"""Files beside hostile code: no name that a candidate could have turned into a link is ever followed."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from htam_agent.plain_text import plain

LOG_KEPT = 64 << 10


def fresh_folder(path: Path) -> Path:
    """An empty folder at `path`, or beside it where an earlier candidate left something that cannot be removed.

    What lay there is removed without following links.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
    try:
        path.mkdir()
    except FileExistsError:
        return Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=path.parent))
    return path


def write_new(path: Path, text: str) -> None:
    """Writes a new file in place of whatever had this name; a link is replaced, its target left alone."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def open_plain(path: Path, flags: int) -> int:
    """A descriptor of a plain file. Raises OSError for links, pipes, devices and folders."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no plain file")
    return descriptor


def read_plain(path: Path) -> bytes:
    """The bytes of a plain file. Raises OSError for anything else in its place."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        return file.read()


def tail(log: Path, limit: int = 2000) -> str:
    """The end of a log file as plain text; empty when there is none."""
    try:
        with open(open_plain(log, os.O_RDONLY), "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return plain(file.read().decode("utf-8", "replace"), limit).strip()
    except OSError:
        return ""


def shorten_log(log: Path) -> None:
    """Keeps the end of a log: a file that prints megabytes fills no disk."""
    try:
        with open(open_plain(log, os.O_RDWR), "r+b") as file:
            if file.seek(0, os.SEEK_END) > LOG_KEPT:
                file.seek(-LOG_KEPT, os.SEEK_END)
                end = file.read()
                file.seek(0)
                file.write(b"[shortened]\n" + end)
                file.truncate()
    except OSError:
        return
