"""The same verdicts on a real GPU: shared device memory, CUDA faults, cold-cache timing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from htam_agent.backends.cuda import CudaBackend
from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.task import Task
from htam_agent.verdict import RunResult
from tests.evaluation.cuda_samples import FAILURES, SIDE_STREAM, TASK, WRONG, candidate

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    answer = CudaBackend().available()
    if not answer.ok:
        pytest.skip(f"no CUDA device: {answer.reason}")
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "task.py").write_text(TASK)
    task = Task.parse(str(folder / "task.py"))
    with Bench(
        task, backend="cuda", folder=folder / "run", limits=Limits(run_seconds=20), compile_baseline=False
    ) as opened:
        yield opened


def judge(bench: Bench, folder: Path, text: str, *, timing: bool = False) -> RunResult:
    file = folder / "kernel.py"
    file.write_text(text)
    return bench.run(bench.compile(file), timing=timing)


def test_a_right_kernel_is_correct_and_timed(bench: Bench, tmp_path: Path) -> None:
    result = judge(bench, tmp_path, candidate(), timing=True)
    assert result.verdict == "correct", result
    assert result.interval is not None
    assert result.faster, "one fused kernel against three"
    assert result.speedup.eager_tf32 is not None
    assert result.launches[0].block == (256, 1, 1)
    assert "landlock" in result.confinement or result.confinement_missing
    assert bench.profile(bench.compile(tmp_path / "kernel.py"), result).fraction_of_floor > 0


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_wrong(bench: Bench, tmp_path: Path, name: str) -> None:
    result = judge(bench, tmp_path, WRONG[name])
    assert result.verdict == "wrong", result


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_has_a_stage_and_a_reason(bench: Bench, tmp_path: Path, name: str) -> None:
    text, stage, reason = FAILURES[name]
    result = judge(bench, tmp_path, text)
    assert result.verdict == "failed", result
    assert result.stage == stage
    assert reason in result.reason


def test_a_fault_leaves_the_next_candidate_alone(bench: Bench, tmp_path: Path) -> None:
    assert judge(bench, tmp_path, FAILURES["illegal access"][0]).verdict == "failed"
    assert judge(bench, tmp_path, candidate()).verdict == "correct"


def test_work_that_the_events_do_not_see_is_quarantined(bench: Bench, tmp_path: Path) -> None:
    result = judge(bench, tmp_path, SIDE_STREAM, timing=True)
    assert result.verdict in ("quarantined", "wrong"), result
    assert not result.faster
