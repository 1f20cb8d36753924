"""Ceilings of a device, measured once and kept on disk.

The file's name is a digest of everything that the figures depend on (device, driver, compiler, torch, threads, and the
version of the measuring programs); a file that does not parse, or whose figures make no sense, is measured again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from htam_agent.backends.cache import cache_home, write_atomically
from htam_agent.verdict import Ceilings, DeviceFacts
from htam_agent.words import Record

MEASUREMENT = 2
"""Raised when a measuring program changes, so that old figures are measured again."""


class _Stored(Record):
    facts: DeviceFacts
    measurement: int
    ceilings: Ceilings


class CeilingStore:
    """Ceilings by device facts. `folder` defaults to `cache_home() / "ceilings"`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else cache_home() / "ceilings"
        self._known: dict[str, Ceilings] = {}

    def get(self, facts: DeviceFacts, measure: Callable[[], Ceilings]) -> Ceilings:
        """The kept ceilings of this device, else `measure()`, kept. A folder that cannot be written costs only time."""
        key = hashlib.sha256(f"{MEASUREMENT}\0{facts.model_dump_json()}".encode()).hexdigest()[:32]
        found = self._known.get(key) or self._read(self.folder / f"{key}.json")
        if found is None:
            found = measure()
            self._write(self.folder / f"{key}.json", facts, found)
        self._known[key] = found
        return found

    @staticmethod
    def _read(path: Path) -> Ceilings | None:
        try:
            stored = _Stored.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None
        return stored.ceilings if plausible(stored.ceilings) else None

    @staticmethod
    def _write(path: Path, facts: DeviceFacts, ceilings: Ceilings) -> None:
        record = _Stored(facts=facts, measurement=MEASUREMENT, ceilings=ceilings)
        try:
            write_atomically(path, record.model_dump_json(indent=1).encode())
        except OSError:
            return


def plausible(ceilings: Ceilings) -> bool:
    """Finite and positive: between a slow single-board computer and a hundred times the fastest device of 2026."""
    rates = (ceilings.copy_bytes_per_second, ceilings.fp32_operations_per_second)
    optional = (
        ceilings.tf32_operations_per_second,
        ceilings.bf16_operations_per_second,
        ceilings.dram_bytes_per_second,
    )
    return (
        all(math.isfinite(rate) and 1e7 < rate < 1e17 for rate in (*rates, *filter(None, optional)))
        and math.isfinite(ceilings.launch_seconds)
        and 0.0 <= ceilings.launch_seconds < 1.0
    )
