"""The two clocks on a real GPU: the shim, slots, other streams, kept results, graph replay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from htam_agent.backends.cuda import CudaBackend
from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.task import Task
from htam_agent.verdict import RunResult
from tests.evaluation.cuda_samples import FORWARD, SIDE_STREAM, TASK, candidate

pytestmark = pytest.mark.gpu
WORK = FORWARD.removeprefix("return ")


def opened(folder: Path, text: str) -> Bench:
    answer = CudaBackend().available()
    if not answer.ok:
        pytest.skip(f"no CUDA device: {answer.reason}")
    (folder / "task.py").write_text(text)
    task = Task.parse(str(folder / "task.py"))
    limits = Limits(run_seconds=20)
    return Bench(task, backend="cuda", folder=folder / "run", limits=limits, compile_baseline=False)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with opened(tmp_path_factory.mktemp("clock"), TASK) as made:
        yield made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A task so small that the host decides how long a call takes."""
    with opened(tmp_path_factory.mktemp("small"), TASK.replace("4096, 2048", "16, 2048")) as made:
        yield made


def judge(bench: Bench, folder: Path, text: str) -> RunResult:
    file = folder / "kernel.py"
    file.write_text(text)
    return bench.run(bench.compile(file))


def test_the_clocks_agree_on_an_honest_kernel(bench: Bench, tmp_path: Path) -> None:
    result = judge(bench, tmp_path, candidate())
    assert result.verdict == "correct", result
    details = {check.name: check.detail for check in result.checks}
    assert "3 sets of inputs in turn" in details["timed-outputs"]
    assert "outer" in details["clock"]
    assert "not built" not in details["clock"]
    assert result.device_ms is not None
    assert result.call_ms is not None
    assert result.device_ms.reference > result.device_ms.candidate > 0.01
    assert result.gpu_before is not None
    assert result.gpu_after is not None
    assert result.gpu_before.sm_clock_mhz
    # A fused pass over 3 x 33.5 MB in less than 1.05 times what the memory gives is impossible.
    assert result.device_ms.candidate > 1e3 * 3 * 4096 * 2048 * 4 / (1.05 * bench._opened().loaded.bandwidth)


def test_a_stream_that_nobody_waits_for_is_wrong(bench: Bench, tmp_path: Path) -> None:
    result = judge(bench, tmp_path, SIDE_STREAM)
    assert result.verdict == "wrong", result
    assert "arrive late" in result.reason


def test_a_stream_that_waits_and_is_waited_for_is_honest(bench: Bench, tmp_path: Path) -> None:
    joined = candidate(
        """
        z = torch.empty_like(x)
        self.stream.wait_stream(torch.cuda.current_stream())
        launch(x, y, self.weight, z, self.stream)
        torch.cuda.current_stream().wait_stream(self.stream)
        return z
        """,
        init="self.stream = torch.cuda.Stream()",
    )
    assert judge(bench, tmp_path, joined).verdict == "correct"


def test_results_that_are_kept_by_a_few_of_the_inputs_are_noticed(bench: Bench, tmp_path: Path) -> None:
    cached = candidate(
        f"""
        key = float(x[7, 7]) + float(y[9, 9]) + float(self.weight[3])
        if key not in self.known:
            self.known = {{**dict(list(self.known.items())[-8:]), key: [{WORK} for _ in range(40)][0]}}
        return self.known[key]
        """,
        init="self.known = {}",
    )
    result = judge(bench, tmp_path, cached)
    assert result.verdict == "quarantined", result
    assert "not seen" in result.reason


def test_a_stopwatch_that_says_half_is_quarantined(bench: Bench, tmp_path: Path) -> None:
    lie = """
import sys
kind = sys.modules['htam_agent.evaluation.stopwatch'].Stopwatch
real = kind.block
def half(*args, **named):
    times, kept = real(*args, **named)
    return [0.5 * t for t in times], kept
kind.block = half
"""
    result = judge(bench, tmp_path, candidate().replace("LAUNCHES = []", "LAUNCHES = []\n" + lie, 1))
    assert result.verdict == "quarantined", result
    assert "clock" in result.reason


def test_lines_of_the_cache_that_are_set_aside_gain_nothing(bench: Bench, tmp_path: Path) -> None:
    """Not every driver grants them, and what was granted is taken back before each block: noticed, or no faster."""
    asks = candidate(f"DRIVER.cuCtxSetLimit(6, ctypes.c_size_t(16 << 20))\nreturn {WORK}")
    once = candidate(init="DRIVER.cuCtxSetLimit(6, ctypes.c_size_t(16 << 20))")
    honest = judge(bench, tmp_path, candidate())
    assert honest.times_ms.candidate
    for text in (asks, once):
        result = judge(bench, tmp_path, text)
        if result.verdict == "quarantined":
            assert "L2" in result.reason
        else:
            assert result.verdict == "correct", result
            assert result.times_ms.candidate
            assert result.times_ms.candidate > 0.97 * honest.times_ms.candidate


def test_speedups_of_a_short_kernel_repeat(bench: Bench, tmp_path: Path) -> None:
    """Its launcher needs longer than the device: behind the flushes that does not show."""
    results = [judge(bench, tmp_path, candidate()) for _ in range(3)]
    assert [result.verdict for result in results] == ["correct"] * 3, results
    best = [result.speedup.best or 0.0 for result in results]
    assert max(best) / min(best) < 1.03, best


def test_a_launch_bound_call_is_marked_and_replayed_as_a_graph(small: Bench, tmp_path: Path) -> None:
    result = judge(small, tmp_path, candidate())
    assert result.verdict == "correct", result
    assert result.launch_bound
    assert result.graph_ms is not None, [check for check in result.checks if check.name == "graph"]
    assert result.call_ms is not None
    assert 0 < result.graph_ms.candidate < result.call_ms.candidate
    assert 0 < result.graph_ms.reference < result.call_ms.reference


def test_a_call_that_cannot_be_captured_is_said(small: Bench, tmp_path: Path) -> None:
    result = judge(small, tmp_path, candidate(f"z = {WORK}\ntorch.cuda.current_stream().synchronize()\nreturn z"))
    assert result.verdict == "correct", result
    assert result.graph_ms is None
    (check,) = [check for check in result.checks if check.name == "graph"]
    assert "the candidate: no CUDA graph" in check.detail
    assert judge(small, tmp_path, candidate()).verdict == "correct", "the reference is none the worse"
