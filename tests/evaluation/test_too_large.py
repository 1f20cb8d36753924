"""Memory that runs out on the harness's side is a fact about the task: never a wrong kernel, never a broken machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from htam_agent.errors import TaskError
from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.task import Task
from tests.evaluation.samples import TASK, candidate

GROWING = TASK.replace(
    "return torch.relu",
    "self.calls = getattr(self, 'calls', 0) + 1\n"
    "        if self.calls > {calls}:\n"
    "            torch.zeros(1 << 44)\n"
    "        return torch.relu",
)


def opened(folder: Path, text: str) -> Bench:
    (folder / "task.py").write_text(text)
    (folder / "kernel.py").write_text(candidate())
    task = Task.parse(str(folder / "task.py"))
    return Bench(task, backend="cpp", folder=folder / "run", limits=Limits(run_seconds=20), hang_memory=False)


def test_a_task_that_does_not_fit_is_refused_before_any_candidate(tmp_path: Path) -> None:
    huge = TASK.replace("torch.randn(32, 100), torch.randn(32, 100)", "torch.zeros(1 << 44), torch.zeros(1 << 44)")
    with pytest.raises(TaskError, match="too large") as caught, opened(tmp_path, huge):
        pass
    assert caught.value.code == "task-too-large"


def test_a_reference_that_runs_out_of_memory_later_is_no_wrong_kernel(tmp_path: Path) -> None:
    with opened(tmp_path, GROWING.format(calls=40)) as bench:
        compiled = bench.compile(tmp_path / "kernel.py")
        results = [bench.run(compiled, timing=False) for _ in range(5)]
    last = results[-1]
    assert last.verdict == "failed", last
    assert "task too large" in last.reason
    assert {result.verdict for result in results} <= {"correct", "failed"}
