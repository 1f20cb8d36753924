"""The lists of packages: constraints.txt (exact versions), offline-packages.txt (names). Standard library only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
OFFLINE = ROOT / "scripts" / "offline-packages.txt"
IF_MISSING = "if missing:"


class Package(NamedTuple):
    """A pinned package; `optional`: only where the machine does not have it already."""

    name: str
    version: str
    optional: bool

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


def normalise(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path = CONSTRAINTS) -> dict[str, str]:
    """name -> exact version."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normalise(name): version for name, version in pairs}


def offline_packages(path: Path = OFFLINE) -> list[Package]:
    """The packages of a machine without a network. Raises ValueError for a name that constraints.txt does not pin."""
    versions = pinned()
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name = normalise(line.removeprefix(IF_MISSING).strip())
        if not name or name.startswith("#"):
            continue
        if name not in versions:
            raise ValueError(f"{path.name} lists {name}, which constraints.txt does not pin: add it there.")
        found.append(Package(name, versions[name], line.startswith(IF_MISSING)))
    return found
