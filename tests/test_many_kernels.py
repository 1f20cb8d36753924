"""A hundred kernels in one go: processes, open files and memory of the main process stay what they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from htam_agent import evaluate
from tests.evaluation.samples import TASK, candidate, with_kernel

COUNT = 100
SETTLED = 20
"""After so many, caches and spare processes are what they will be."""


def descendants(pid: int) -> int:
    """How many processes live below `pid`."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    below, found = {pid}, -1
    while len(below) != found:
        found = len(below)
        below |= {child for child, parent in parents.items() if parent in below}
    return found - 1


def measured() -> tuple[int, int, float]:
    """Processes below this one, its open files, and its resident megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return descendants(os.getpid()), len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.slow
def test_a_hundred_kernels_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK, encoding="utf-8")
    texts = [with_kernel("value < 0 ? 0 : value", "0"), candidate("os._exit(1)"), "not python at all ("]
    for number in range(COUNT):
        (tmp_path / f"k{number}.py").write_text(f"{texts[number % 3]}\n# {number}\n", encoding="utf-8")
    before, seen, verdicts = measured(), [], []
    files = [tmp_path / f"k{number}.py" for number in range(COUNT)]
    for evaluation in evaluate(str(tmp_path / "task.py"), files, backend="cpp"):
        verdicts.append(evaluation.verdict)
        seen.append(measured())
    assert verdicts[:3] == ["wrong", "failed", "failed"]
    assert len(verdicts) == COUNT
    processes, opened, megabytes = zip(*seen[SETTLED:], strict=True)
    assert max(processes) <= max(seen[SETTLED - 3][0], seen[SETTLED - 2][0], seen[SETTLED - 1][0]) + 1
    assert max(opened[-10:]) <= max(opened[:10])
    assert max(megabytes[-10:]) <= max(megabytes[:10]) + 20.0
    assert measured()[:2] == before[:2]
