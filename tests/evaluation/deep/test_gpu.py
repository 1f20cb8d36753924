"""The tools on a real GPU: planted faults are found, an honest kernel stays correct and is measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from htam_agent.backends.cuda import CudaBackend
from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.evaluation.deep import gpu_tools
from htam_agent.task import Task
from htam_agent.verdict import Check, RunResult
from tests.evaluation.cuda_samples import KERNEL, TASK, candidate

pytestmark = pytest.mark.gpu

BEYOND = candidate(
    kernel=KERNEL.replace(
        "    z[index] =",
        "    if (index == total - 1 && ((const volatile float*)w)[columns] == 1e30f) z[0] = 0;\n    z[index] =",
    )
)
"""Reads one element behind its weight, in torch's blocks another's or nobody's, and does not use it."""
RACING = candidate(
    kernel=KERNEL.replace(
        "  if (index < total) {",
        "  __shared__ float held[256];\n  held[threadIdx.x] = index < total ? x[index] : 0;\n"
        "  float other = ((volatile float*)held)[threadIdx.x ^ 37];\n"
        "  if (index < total && other == 1e30f) z[index] = 0;\n  if (index < total) {",
    )
)
"""Reads what another warp writes, without a barrier, and does not use it."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    answer = CudaBackend().available()
    if not answer.ok:
        pytest.skip(f"no CUDA device: {answer.reason}")
    folder = tmp_path_factory.mktemp("gpu-deep")
    (folder / "task.py").write_text(TASK)
    task = Task.parse(str(folder / "task.py"))
    with Bench(task, backend="cuda", folder=folder / "run", limits=Limits(), compile_baseline=False) as opened:
        yield opened


@pytest.fixture(scope="module")
def honest(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return deep(bench, tmp_path_factory.mktemp("honest"), candidate())


def deep(bench: Bench, folder: Path, text: str) -> RunResult:
    file = folder / "kernel.py"
    file.write_text(text)
    compiled = bench.compile(file)
    judged = bench.run(compiled, timing=False)
    assert judged.verdict == "correct", judged
    return bench.deep(compiled, judged)


def check(result: RunResult, name: str) -> Check:
    found = next(item for item in result.checks if item.name == name)
    if found.detail.startswith("not done: ") and not gpu_tools.find("ncu" if name == "ncu" else "compute-sanitizer"):
        pytest.skip(found.detail)
    return found


def test_an_honest_kernel_stays_correct(honest: RunResult) -> None:
    assert honest.verdict == "correct", honest.reason
    assert "first extent" in check(honest, "other-shapes").detail


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_a_tool_finishes_and_finds_nothing_in_an_honest_kernel(honest: RunResult, tool: str) -> None:
    found = check(honest, tool)
    assert found.passed
    assert found.detail.startswith("nothing on "), found.detail


def test_the_counters_of_an_honest_kernel_are_read_or_the_reason_is_said(honest: RunResult, bench: Bench) -> None:
    found = check(honest, "ncu")
    if not honest.counters:
        assert found.detail.startswith("not done: ")
        pytest.skip(found.detail)
    (item,) = honest.counters
    assert item.kernel.startswith("kernel")
    moved = (item.dram_bytes_read or 0) + (item.dram_bytes_written or 0)
    assert 0.5 * bench.operator.unavoidable_bytes < moved < 2 * bench.operator.unavoidable_bytes
    assert 1e3 < (item.nanoseconds or 0) < 1e7
    assert 8 <= (item.registers or 0) <= 255


def test_a_read_behind_a_weight_that_does_no_harm_is_wrong(bench: Bench, tmp_path: Path) -> None:
    result = deep(bench, tmp_path, BEYOND)
    found = check(result, "memcheck")
    assert not found.passed, found.detail
    assert result.verdict == "wrong"
    assert "Invalid __global__" in result.reason
    assert "kernel" in result.reason


def test_a_missing_barrier_that_does_no_harm_is_quarantined(bench: Bench, tmp_path: Path) -> None:
    result = deep(bench, tmp_path, RACING)
    found = check(result, "racecheck")
    assert not found.passed, found.detail
    assert result.verdict == "quarantined"
    assert "Race reported" in result.reason


def test_the_ceilings_order_themselves(bench: Bench) -> None:
    ceilings = bench.ceilings
    assert ceilings.fp32_operations_per_second < ceilings.tf32_operations_per_second
    assert ceilings.tf32_operations_per_second < ceilings.bf16_operations_per_second
    assert 0.4 * ceilings.dram_bytes_per_second < ceilings.copy_bytes_per_second < ceilings.dram_bytes_per_second
