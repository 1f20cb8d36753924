"""Own work on a real GPU: emptied cubins, launches left out, kernels by name."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator

import pytest

from htam_agent.backends.cuda import CudaBackend
from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.task import Task
from htam_agent.verdict import RunResult
from tests.evaluation import own_work_cuda_samples as samples

pytestmark = pytest.mark.gpu

Judge = Callable[..., RunResult]
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """judge(task text, candidate text): one bench for each task, closed at the end."""
    answer = CudaBackend().available()
    if not answer.ok:
        pytest.skip(f"no CUDA device: {answer.reason}")
    folder = tmp_path_factory.mktemp("own-work-gpu")
    benches: dict[str, Bench] = {}

    def run(task: str, text: str) -> RunResult:
        if task not in benches:
            file = folder / f"task{len(benches)}.py"
            file.write_text(task)
            benches[task] = Bench(
                Task.parse(str(file)),
                backend="cuda",
                folder=folder / file.stem,
                limits=Limits(run_seconds=60),
                compile_baseline=False,
            )
            benches[task].open()
        kernel = folder / "kernel.py"
        kernel.write_text(text)
        return benches[task].run(benches[task].compile(kernel), timing=False)

    yield run
    for bench in benches.values():
        bench.close()


def detail_of(result: RunResult, name: str) -> str:
    return next(check.detail for check in result.checks if check.name == name)


def test_an_own_epilogue_is_correct_and_its_share_is_measured(judge: Judge) -> None:
    result = judge(samples.MATMUL, samples.by_driver(samples.EPILOGUE))
    assert result.verdict == "correct", result
    assert "elements of output are off" in detail_of(result, "own-work")
    assert result.own_share is not None
    assert 0.0 < result.own_share < 0.9, "the matmul takes its part"
    assert "own " in detail_of(result, "kernel-names")


def test_a_copy_before_an_own_kernel_is_no_computing(judge: Judge) -> None:
    text = samples.by_driver("return run('relu', x.clone())", "x")
    result = judge(samples.RELU, text)
    assert result.verdict == "correct", result
    assert result.own_share is not None
    assert 0.1 < result.own_share < 0.9, "the copy before it takes about as long"


@pytest.mark.parametrize("forward", [samples.DECOY, samples.NEVER_CALLED], ids=["decoy", "never called"])
def test_kernels_of_a_cubin_that_have_no_part_in_the_output_are_refused(judge: Judge, forward: str) -> None:
    result = judge(samples.PRODUCT, samples.by_driver(forward))
    assert (result.verdict, result.stage) == ("failed", "policy"), result
    assert "replaced by nothing the output is still right" in result.reason


def test_a_cubin_that_is_never_loaded_is_refused(judge: Judge) -> None:
    result = judge(samples.PRODUCT, samples.by_driver(samples.NEVER_CALLED, load="MODULE = None"))
    assert (result.verdict, result.stage) == ("failed", "policy"), result
    assert "never loaded" in result.reason


@needs_nvcc
def test_launches_of_an_own_library_are_left_out(judge: Judge) -> None:
    result = judge(samples.MATMUL, samples.by_runtime(samples.EPILOGUE))
    assert result.verdict == "correct", result
    assert "without 1 launches of its own: " in detail_of(result, "own-work")
    assert "relu" in detail_of(result, "kernel-names")


@needs_nvcc
@pytest.mark.parametrize("forward", [samples.DECOY, samples.NEVER_CALLED], ids=["decoy", "never called"])
def test_an_own_library_that_has_no_part_in_the_output_is_refused(judge: Judge, forward: str) -> None:
    result = judge(samples.PRODUCT, samples.by_runtime(forward))
    assert (result.verdict, result.stage) == ("failed", "policy"), result
    assert "still right" in result.reason or "no kernel of its own" in result.reason


@needs_triton
def test_a_triton_kernel_is_seen_by_its_name(judge: Judge) -> None:
    result = judge(samples.MATMUL, samples.with_model(samples.TRITON, samples.EPILOGUE))
    assert result.verdict == "correct", result
    assert "relu" in detail_of(result, "kernel-names")
    assert result.own_share is not None
    assert 0.0 < result.own_share < 1.0


@needs_triton
def test_a_triton_kernel_that_is_never_launched_is_refused(judge: Judge) -> None:
    result = judge(samples.PRODUCT, samples.with_model(samples.TRITON, samples.NEVER_CALLED))
    assert (result.verdict, result.stage) == ("failed", "policy"), result
    assert "launches no kernel of its own" in result.reason
