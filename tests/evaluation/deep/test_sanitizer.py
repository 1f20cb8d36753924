"""What compute-sanitizer's text becomes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.evaluation.deep import sanitizer

BEYOND = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at row_sum+0x180
=========     by thread (0,0,0) in block (1,0,0)
=========     Access at 0x7fd8e5a00400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7fd8e5a00000 of size 1,024 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at row_sum+0x180
=========     by thread (1,0,0) in block (1,0,0)
=========     Access at 0x7fd8e5a00404 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7fd8e5a00000 of size 1,024 bytes
=========
========= ERROR SUMMARY: 2 errors
"""
MEASURED = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at row_sum+0xc0
=========     by thread (0,0,0) in block (1,0,0)
=========     Access to 0x7fcbc6800800 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7fcbc6800400 of size 1024 bytes
=========
========= ERROR SUMMARY: 1 error

""".replace("=========\n", "========= \n")
"""As CUDA 13.0 writes it (driver 580, H200)."""
OLDER = """\
========= COMPUTE-SANITIZER
========= Invalid __shared__ read of size 4 bytes
=========     at 0x70 in void row_sum(float *, const float *, int)
=========     by thread (31,0,0) in block (0,0,0)
=========     Address 0x480 is out of bounds
=========
========= ERROR SUMMARY: 1 error
"""
RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at row_sum+0x90
=========     and Read access at row_sum+0xe0 [1024 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARNING = RACE.replace("Error: Race", "Warning: Race").replace("1 error, 0 warnings", "0 errors, 1 warning")
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
CLEAN_RACE = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
BARRIER = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at row_sum+0x120
=========     by thread (3,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BEYOND, "Invalid __global__ write of size 4 bytes at row_sum"),
        (MEASURED, "Invalid __global__ read of size 4 bytes at row_sum+0xc0 by thread (0,0,0) in block (1,0,0)"),
        (OLDER, "Invalid __shared__ read of size 4 bytes at 0x70 in void row_sum"),
        (RACE, "Race reported between Write access at row_sum+0x90 and Read access"),
        (BARRIER, "Barrier error detected"),
    ],
)
def test_a_fault_in_an_own_kernel_is_found_with_its_kernel(text: str, words: str) -> None:
    answer = sanitizer.parse(text, ["other", "row_sum"])
    assert answer.finished
    assert words in answer.of_own()[0]


@pytest.mark.parametrize("text", [BEYOND, OLDER, RACE, BARRIER])
def test_a_fault_in_another_kernel_is_not_the_candidate_s(text: str) -> None:
    answer = sanitizer.parse(text, ["row_su", "row_sum2", "sum"])
    assert answer.reports
    assert answer.of_own() == []


def test_without_names_every_kernel_counts_but_a_library_s() -> None:
    assert sanitizer.parse(BEYOND, []).of_own()
    torch = BEYOND.replace("row_sum+0x180", "void at::native::vectorized_elementwise_kernel<4>(int)+0x180")
    assert sanitizer.parse(torch, []).of_own() == []


def test_a_program_that_the_tool_could_not_watch_is_no_fault_of_a_kernel() -> None:
    text = "========= COMPUTE-SANITIZER\n========= Error: Target application terminated before first instrumented API\n"
    answer = sanitizer.parse(text, [])
    assert not answer.finished
    assert answer.reports == []


def test_warnings_of_racecheck_are_no_errors() -> None:
    answer = sanitizer.parse(WARNING, ["row_sum"])
    assert answer.reports[0].warning
    assert answer.of_own() == []


@pytest.mark.parametrize("text", [CLEAN, CLEAN_RACE])
def test_a_clean_text_finds_nothing(text: str) -> None:
    assert sanitizer.parse(text, ["row_sum"]) == sanitizer.SanitizerAnswer(finished=True, reports=[])


@given(st.integers(0, len(BEYOND.splitlines()) - 1))
def test_a_text_that_ends_early_is_never_clean(lines: int) -> None:
    cut = "\n".join(BEYOND.splitlines()[:lines])
    assert not sanitizer.parse(cut, ["row_sum"]).finished


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    answer = sanitizer.parse(text, ["row_sum"])
    assert all(len(report.text) <= 400 for report in answer.reports)


@given(st.lists(st.sampled_from([BEYOND, RACE, BARRIER, OLDER, CLEAN]), max_size=4))
def test_reports_add_up(texts: list[str]) -> None:
    whole = sanitizer.parse("".join(texts), ["row_sum"])
    assert whole.reports == [report for text in texts for report in sanitizer.parse(text, ["row_sum"]).reports]
