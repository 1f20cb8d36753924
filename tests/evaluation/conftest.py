"""One bench for all: its processes start once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.task import Task
from htam_agent.verdict import RunResult
from tests.evaluation.samples import TASK

ROOM = {"memory_bytes": 4 << 30, "output_bytes": 8 << 20, "disk_bytes": 128 << 20, "processes": 48}
LIMITS = Limits(run_seconds=20, load_seconds=20).model_copy(update=ROOM)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """An open bench on the sample task."""
    folder = tmp_path_factory.mktemp("bench")
    task = folder / "task.py"
    task.write_text(TASK)
    with Bench(Task.parse(str(task)), backend="cpp", folder=folder / "run", limits=LIMITS, hang_memory=False) as opened:
        yield opened


@pytest.fixture
def judge(bench: Bench, tmp_path: Path) -> Callable[..., RunResult]:
    """Judges a candidate's text, without timing unless asked for."""

    def run(text: str, *, timing: bool = False) -> RunResult:
        file = tmp_path / "kernel.py"
        file.write_text(text)
        return bench.run(bench.compile(file), timing=timing)

    return run
