"""Hangs that are remembered: a candidate that hung once is refused at once, with the earlier reason.

A record says which limits were waited for. Under a longer one, or when the memory is not asked, it is tried again. The
key holds all that a hang depends on: the file's bytes, the task's form and operators, the device and its compiler.
Several processes may use one folder: a record is put in place by an atomic rename.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import Field, ValidationError

from htam_agent.backends.cache import cache_home, write_atomically
from htam_agent.words import Record, Stage


class Hang(Record):
    """What hung, and the limits in seconds that it was waited for."""

    stage: Stage
    reason: str
    limits: dict[str, float] = Field(default_factory=dict)


class HangMemory:
    """Hangs by key, in `folder` (by default beside the cached builds)."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else cache_home() / "hangs"

    def find(self, key: str, limits: dict[str, float]) -> Hang | None:
        """The hang that was seen under limits at least as long as these in every respect, or None."""
        try:
            hang = Hang.model_validate_json(self._path(key).read_bytes())
        except (OSError, ValidationError):
            return None
        waited = all(hang.limits.get(name, 0.0) >= seconds for name, seconds in limits.items())
        return hang if waited else None

    def keep(self, key: str, hang: Hang) -> bool:
        """Remembers it; False where the folder cannot be written, and nothing else then."""
        try:
            write_atomically(self._path(key), hang.model_dump_json().encode())
        except OSError:
            return False
        return True

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def hang_key(*parts: str) -> str:
    """A key over texts, none of which runs into the next."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest()
