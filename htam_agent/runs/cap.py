"""The cap on disk of all runs together: the oldest finished runs give up what can be made again.

Kernels, results, reports and step records are never removed; attempts and their binaries, and checkpoints of finished
runs, are. A run that can be resumed is not finished.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from htam_agent.errors import RunError
from htam_agent.runs.folder import list_runs
from htam_agent.runs.records import Result

if TYPE_CHECKING:
    from pathlib import Path

    from htam_agent.runs.folder import RunFolder


def folder_bytes(folder: Path) -> int:
    """Bytes of all files under `folder`; files that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
        except OSError:
            continue
    return total


def _is_finished(folder: RunFolder) -> bool:
    """Whether the run came to its own end. One whose result cannot be read is left alone: `htam runs` names it."""
    try:
        result = folder.read("result.json", Result)
    except RunError:
        return False
    return result is not None and not result.unfinished


def keep_under_cap(runs: Path, cap_bytes: int) -> list[str]:
    """Shrink finished runs, oldest first, until all runs together fit into `cap_bytes`.

    Returns the names of the runs that were shrunk. Runs that have not finished are never touched.
    """
    folders = list_runs(runs)
    sizes = {folder.root: folder_bytes(folder.root) for folder in folders}
    total = sum(sizes.values())
    shrunk = []
    for folder in folders:
        if total <= cap_bytes:
            break
        if not _is_finished(folder):
            continue
        before = sizes[folder.root]
        for name in ("candidates", "bench"):
            shutil.rmtree(folder.path(name), ignore_errors=True)
        for path in folder.root.glob("checkpoints.sqlite*"):
            path.unlink(missing_ok=True)
        after = folder_bytes(folder.root)
        if after < before:
            shrunk.append(folder.root.name)
        total -= before - after
    return shrunk
