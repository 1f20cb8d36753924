"""What an output owes to its own kernels: emptied binaries, decoys, honest uses of a library."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.evaluation.foreign_calls import foreign_functions, foreign_symbols
from htam_agent.task import Task
from htam_agent.verdict import Check, RunResult
from tests.evaluation import own_work_samples as samples

Judge = Callable[..., RunResult]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """judge(task text, candidate text): one bench for each task, closed at the end."""
    folder = tmp_path_factory.mktemp("own-work")
    benches: dict[str, Bench] = {}

    def run(task: str, text: str, *, timing: bool = False) -> RunResult:
        if task not in benches:
            file = folder / f"task{len(benches)}.py"
            file.write_text(task)
            benches[task] = Bench(
                Task.parse(str(file)), backend="cpp", folder=folder / file.stem, limits=Limits(run_seconds=20)
            )
            benches[task].open()
        kernel = folder / "kernel.py"
        kernel.write_text(text)
        return benches[task].run(benches[task].compile(kernel), timing=timing)

    yield run
    for bench in benches.values():
        bench.close()


def check_of(result: RunResult, name: str) -> Check:
    return next(check for check in result.checks if check.name == name)


@pytest.mark.parametrize("text", [samples.EPILOGUE, samples.EPILOGUE_IN_A_TRY], ids=["plain", "in a try"])
def test_a_library_with_an_own_epilogue_is_correct(judge: Judge, text: str) -> None:
    result = judge(samples.MATMUL, text)
    assert result.verdict == "correct", result
    check = check_of(result, "own-work")
    assert check.passed
    assert "elements of output are off" in check.detail


@pytest.mark.parametrize("text", [samples.DECOY, samples.NEVER_CALLED], ids=["decoy", "never called"])
def test_kernels_that_have_no_part_in_the_output_are_refused(judge: Judge, text: str) -> None:
    result = judge(samples.PRODUCT, text)
    assert (result.verdict, result.stage) == ("failed", "policy"), result
    assert "replaced by nothing the output is still right" in result.reason


def test_kernels_that_are_never_loaded_are_refused(judge: Judge) -> None:
    result = judge(samples.PRODUCT, samples.NEVER_LOADED)
    assert (result.verdict, result.stage) == ("failed", "policy"), result
    assert "never loaded" in result.reason


def test_a_process_that_is_started_is_no_kernel(judge: Judge) -> None:
    result = judge(samples.PRODUCT, samples.STARTS_A_PROCESS)
    assert (result.verdict, result.stage) == ("quarantined", "policy"), result
    assert "never loaded, nor any that it built itself" in result.reason


def test_a_file_that_builds_its_kernels_again_is_no_cheat(judge: Judge) -> None:
    result = judge(samples.MATMUL, samples.BUILT_AGAIN)
    assert result.verdict == "correct", result
    assert "not tried: the file builds its kernels itself" in check_of(result, "own-work").detail


def test_a_weak_task_gives_no_false_alarm(judge: Judge) -> None:
    result = judge(samples.WEAK, samples.candidate("z = torch.zeros(64, 48)\nreturn run('relu', z)"))
    assert result.verdict == "correct", result
    check = check_of(result, "own-work")
    assert not check.passed
    assert "zeros" in check.detail


def test_an_operator_that_copies_its_own_values_gives_no_false_alarm(judge: Judge) -> None:
    result = judge(samples.POSITIVE, samples.alone())
    assert result.verdict == "correct", result
    assert "without all its" in check_of(result, "own-work").detail


def test_an_output_that_is_all_false_gives_no_false_alarm(judge: Judge) -> None:
    result = judge(samples.ALL_FALSE, samples.IS_NAN)
    assert result.verdict == "correct", result
    assert "no output is floating" in check_of(result, "own-work").detail


def test_the_share_of_own_kernels_is_measured(judge: Judge) -> None:
    result = judge(samples.MATMUL, samples.EPILOGUE, timing=True)
    assert result.verdict != "failed", result
    assert result.own_share is not None
    assert 0.0 <= result.own_share <= 1.0
    assert "ms without its kernels" in check_of(result, "own-share").detail


REFUSED = {
    "BLAS by ctypes": (samples.LOOKS_UP_BLAS, "cblas_sgemm"),
    "a library that loads others": (samples.LOADS_MORE, "dlopen"),
    "torch in a custom operator": (samples.IN_A_CUSTOM_OPERATOR, "aten.clamp_min"),
    "torch in another thread": (samples.IN_A_THREAD, "aten.clamp_min"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_work_under_own_kernels_only_is_refused(judge: Judge, name: str) -> None:
    text, what = REFUSED[name]
    result = judge(samples.CELL, text)
    assert (result.verdict, result.stage) == ("failed", "policy"), result
    assert what in result.reason


@pytest.mark.slow
def test_torch_in_timed_calls_is_refused(judge: Judge) -> None:
    result = judge(samples.CELL, samples.TORCH_LATER, timing=True)
    assert not result.faster
    assert result.verdict in ("failed", "quarantined"), result
    if result.verdict == "failed":  # else the clocks did not agree, on a busy machine
        assert "aten.clamp_min" in result.reason


@pytest.mark.parametrize("text", [samples.alone(), samples.OWN_SGEMM], ids=["relu", "named like BLAS"])
def test_a_kernel_that_does_everything_is_correct(judge: Judge, text: str) -> None:
    result = judge(samples.CELL, text)
    assert result.verdict == "correct", result


def test_names_of_computing_libraries() -> None:
    ours = ["expf", "memcpy", "GOMP_parallel", "_ZGVdN8v_expf", "my_gemm", "sgemm_tiled", "cuLaunchKernel", "verf"]
    assert foreign_symbols(ours) == foreign_functions(ours) == []
    theirs = ["cblas_sgemm", "sgemm_", "cublasSgemm_v2", "cudnnConvolutionForward", "vsTanh", "mkl_sgemm", "dgemm"]
    assert foreign_symbols(theirs) == foreign_functions(theirs) == theirs
    assert foreign_functions(theirs, own=["dgemm"]) == theirs[:-1]
    assert foreign_symbols(["_ZN2at4_ops4relu4callERKNS_6TensorE", "PyObject_Call", "Py_Initialize", "dlsym"])


def test_a_kernel_for_a_parameter_that_starts_as_the_identity_is_correct(judge: Judge) -> None:
    result = judge(samples.SCALED, samples.SCALING)
    assert result.verdict == "correct", result
    assert "replaced" not in check_of(result, "own-work").detail
