"""Confinement and faults where CUDA is: every layer beside a working context, and the next candidate unaffected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from htam_agent.backends.cuda import CudaBackend
from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.evaluation.confinement import LAYERS
from htam_agent.task import Task
from htam_agent.verdict import RunResult
from tests.evaluation.cuda_samples import FORWARD, TASK, candidate

pytestmark = pytest.mark.gpu
Judge = Callable[[str], RunResult]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    answer = CudaBackend().available()
    if not answer.ok:
        pytest.skip(f"no CUDA device: {answer.reason}")
    folder = tmp_path_factory.mktemp("separation")
    (folder / "task.py").write_text(TASK)
    task, limits = Task.parse(str(folder / "task.py")), Limits(run_seconds=20)
    with Bench(
        task, backend="cuda", folder=folder / "run", limits=limits, compile_baseline=False, hang_memory=False
    ) as opened:
        yield opened


@pytest.fixture
def judge(bench: Bench, tmp_path: Path) -> Judge:
    def run(text: str) -> RunResult:
        file = tmp_path / "kernel.py"
        file.write_text(text)
        return bench.run(bench.compile(file), timing=False)

    return run


def test_every_layer_is_active_and_cuda_works(judge: Judge) -> None:
    result = judge(candidate())
    assert result.verdict == "correct", result
    assert {*result.confinement, *(line.partition(":")[0] for line in result.confinement_missing)} == set(LAYERS)
    if "own-processes" in result.confinement:
        assert "own-files" in result.confinement


def test_a_spare_has_its_context_open(bench: Bench, judge: Judge) -> None:
    judge(candidate())
    bench._opened().spares.settle()
    before = set(bench._opened().spares.pids)
    assert len(before) == 2
    result = judge(candidate())
    assert result.stages["spawn"] < 0.1
    assert not before <= set(bench._opened().spares.pids)


FAULTS = {
    "a crash": "os.abort()",
    "an exit": "os._exit(0)",
    "memory that is not there": "torch.empty(1 << 50, dtype=torch.uint8, device='cuda')",
    "an access outside": "torch.arange(8, device='cuda')[torch.full((4,), 1 << 20, device='cuda')].cpu()",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_a_verdict_and_the_next_candidate_is_fine(judge: Judge, name: str) -> None:
    assert judge(candidate(f"import os\n{FAULTS[name]}\n{FORWARD}")).verdict == "failed"
    assert judge(candidate()).verdict == "correct"
