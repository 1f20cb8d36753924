"""The deep checks on the processor, with a real compiler and its sanitizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from htam_agent.backends.cpp import CppBackend
from htam_agent.evaluation.bench import Bench
from htam_agent.evaluation.deep import address
from htam_agent.task import Task
from htam_agent.verdict import Check, RunResult
from tests.evaluation.samples import FORWARD, TASK, candidate, with_kernel

BEYOND = with_kernel(
    "= value < 0 ? 0 : value;",
    "= value < 0 ? 0 : value;\n"
    "      if (row == rows - 1 && column == columns - 1) "
    "*(volatile float*)&value = *(volatile const float*)(x + rows * columns);",
)
"""Reads one element behind its input and does not use it: the numbers are right."""
FIXED = with_kernel("row < rows;", "row < 32;")
SPECIALISED = candidate(
    "if x.shape != (32, 100): raise ValueError('32 x 100 only')\nreturn launch(x, y, self.weight, torch.empty_like(x))"
)
CRASHES = candidate("if x.shape[0] == 1: ctypes.string_at(8)\nreturn launch(x, y, self.weight, torch.empty_like(x))")
HIDES = candidate(
    "if os.path.exists('order.json'): raise ValueError('not here')\n"
    "return launch(x, y, self.weight, torch.empty_like(x))"
)
OVERFLOWS = with_kernel(
    "for (long row",
    "volatile int large = 2147483647;\n  volatile int sum = large + (int)(rows > 0);\n  for (long row",
)

has_sanitizer = bool(address.library(CppBackend().compiler))
needs_sanitizer = pytest.mark.skipif(not has_sanitizer, reason="this g++ has no AddressSanitizer library")


@pytest.fixture
def deep(bench: Bench, tmp_path: Path) -> Callable[[str], RunResult]:
    """The deep checks of a candidate's text that is right where it is judged."""

    def run(text: str) -> RunResult:
        file = tmp_path / "kernel.py"
        file.write_text(text)
        compiled = bench.compile(file)
        judged = bench.run(compiled, timing=False)
        assert judged.verdict == "correct", judged
        return bench.deep(compiled, judged)

    return run


def check(result: RunResult, name: str) -> Check:
    return next(item for item in result.checks if item.name == name)


def test_an_honest_kernel_stays_correct(deep: Callable[[str], RunResult]) -> None:
    result = deep(candidate())
    assert result.verdict == "correct", result.reason
    shapes = check(result, "other-shapes")
    assert "first extent 33" in shapes.detail
    assert "first extent 1 " in shapes.detail
    assert has_sanitizer == ("nothing outside" in check(result, "address-sanitizer").detail)
    assert result.stages["deep"] > 0


@needs_sanitizer
def test_an_access_outside_of_a_tensor_that_does_no_harm_is_wrong(deep: Callable[[str], RunResult]) -> None:
    result = deep(BEYOND)
    assert result.verdict == "wrong"
    assert result.stage == "verify"
    assert "heap-buffer-overflow in kernel" in result.reason
    assert "a read of 4 bytes" in result.reason
    assert result.protocols["strict"] == "wrong"
    assert result.speedup.best is None


def test_a_kernel_for_one_shape_that_does_not_say_so_is_wrong(deep: Callable[[str], RunResult]) -> None:
    result = deep(FIXED)
    assert result.verdict == "wrong"
    assert "first extent" in result.reason


@pytest.mark.slow
def test_a_kernel_for_one_shape_that_says_so_stays_correct(deep: Callable[[str], RunResult]) -> None:
    result = deep(SPECIALISED)
    assert result.verdict == "correct", result.reason
    assert "specialised" in check(result, "other-shapes").detail


@pytest.mark.slow
@needs_sanitizer
def test_a_kernel_for_one_large_shape_meets_the_sanitizer_at_that_shape(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK.replace("32, 100", "4096, 100"))
    (tmp_path / "kernel.py").write_text(BEYOND.replace(FORWARD, f"assert len(x) == 4096, 'no'\n        {FORWARD}"))
    with Bench(Task.parse(str(tmp_path / "task.py")), backend="cpp", folder=tmp_path / "run") as bench:
        compiled = bench.compile(tmp_path / "kernel.py")
        result = bench.deep(compiled, bench.run(compiled, timing=False))
    assert "specialised: it raises for small" in check(result, "other-shapes").detail
    assert result.verdict == "wrong"
    assert "as given: heap-buffer-overflow" in result.reason


@pytest.mark.slow
def test_a_crash_at_another_shape_is_no_refusal(deep: Callable[[str], RunResult]) -> None:
    result = deep(CRASHES)
    assert result.verdict == "wrong"
    assert "SIGSEGV" in result.reason


@pytest.mark.slow
def test_a_kernel_that_runs_only_where_it_is_judged_is_quarantined(deep: Callable[[str], RunResult]) -> None:
    result = deep(HIDES)
    assert result.verdict == "quarantined"
    assert "not here" in result.reason


@pytest.mark.slow
@needs_sanitizer
def test_undefined_behaviour_without_harm_is_quarantined(deep: Callable[[str], RunResult]) -> None:
    result = deep(OVERFLOWS)
    assert result.verdict == "quarantined", result
    assert "signed integer overflow" in result.reason


def test_what_was_not_correct_is_left_as_it_is(bench: Bench) -> None:
    wrong = RunResult(verdict="wrong", stage="verify", reason="the numbers")
    compiled = bench.compile(Path("/nonexistent.py"))
    assert bench.deep(compiled, wrong) == wrong
