"""Faults that users of comparable tools have reported: for each, what must happen here, and the test that shows it.

A row points at tests elsewhere ("file::function", checked to exist), or at one in this file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.task import Task
from htam_agent.verdict import RunResult

TESTS = Path(__file__).parents[1]
HERE = "evaluation/test_cases.py"

CASES = {
    "a zero kernel passes on outputs that are near zero": (
        f"{HERE}::test_a_task_that_zeros_pass_is_marked_or_zeros_are_rejected",
        "evaluation/test_nulls.py::test_tiny_outputs_are_weak_for_absolute_tolerances",
    ),
    "integer targets cast to float break cross-entropy": (
        f"{HERE}::test_integer_targets_stay_integers",
        "evaluation/test_loading.py::test_half_precisions_cast_floating_tensors_only",
    ),
    "a constructor that raises ends the harness": (f"{HERE}::test_a_constructor_that_raises_is_a_failed_construction",),
    "one illegal memory access fails every later kernel": (
        "evaluation/test_bench.py::test_a_failure_leaves_the_next_candidate_alone",
        "evaluation/test_gpu.py::test_a_fault_leaves_the_next_candidate_alone",
    ),
    "out of memory while large outputs are compared": (
        "evaluation/test_verify.py::test_chunks_change_nothing",
        "evaluation/test_exchange.py::test_a_buffer_larger_than_the_machine_is_refused",
        "cli/test_evaluate.py::test_a_task_that_is_too_large_is_said_so_and_nothing_is_wrong",
        f"{HERE}::test_a_candidate_that_takes_too_much_memory_is_not_called_wrong",
    ),
    "small kernels time with wild outliers": (
        "evaluation/test_timing.py::test_the_interval_covers_the_true_median",
        "evaluation/test_timing.py::test_rounds_end_when_the_interval_is_narrow_or_clear",
    ),
    "the same extension name in several processes": (
        "backends/test_cache.py::test_processes_that_build_the_same_source_at_once_all_succeed",
    ),
    "a failed build is not rebuilt, or a stale lock hangs": (
        "backends/test_cache.py::test_a_damaged_entry_is_built_again",
        "backends/test_cache.py::test_a_time_out_is_not_remembered",
        "evaluation/test_timing.py::test_the_lock_is_exclusive_and_dies_with_its_owner",
    ),
    "a hung kernel blocks for hours": (
        "evaluation/test_processes.py::test_a_hang_is_killed_with_its_children",
        "evaluation/test_hangs.py::test_a_file_that_hung_is_refused_at_once",
    ),
    "stopping hangs, an orphan keeps the device": (
        "evaluation/test_processes.py::test_everything_dies_with_the_main_process",
        "evaluation/test_separation.py::test_left_over_processes_are_named_and_killed",
    ),
    "wins that nobody verified": (
        f"{HERE}::test_what_is_not_correct_is_never_fast",
        "coding_model/test_parsing.py::test_any_answer_gives_a_file_or_a_problem",
    ),
    "a reported gain that is none": ("graph/test_run_artifacts.py::test_the_kernel_evaluates_correct_on_its_own",),
    "a TF32 kernel against an FP32 baseline": (
        "evaluation/test_bench.py::test_baselines_are_measured_once_and_can_be_taken_over",
        "evaluation/test_gpu.py::test_a_right_kernel_is_correct_and_timed",
    ),
    "a missing key changes the route in silence": (
        "cli/test_bad_input.py::test_a_missing_key_is_named_before_any_work",
        "coding_model/test_roles.py::test_the_preflight_names_the_setting_that_is_wrong",
    ),
    "a made-up bandwidth for an unknown GPU": (
        "backends/test_ceilings.py::test_figures_that_make_no_sense_are_not_believed",
        "backends/test_occupancy.py::test_an_unknown_architecture_is_not_guessed",
        "tools/test_diagnose.py::test_without_a_time_nothing_is_claimed",
    ),
    "flags shadowed by a file": (
        "test_settings.py::test_each_layer_wins_over_the_weaker_ones",
        "test_settings.py::test_a_runs_settings_win_over_files_and_lose_to_what_is_given",
    ),
    "a profiler without permission": (
        "evaluation/deep/test_counters.py::test_a_text_without_a_table_gives_nothing",
        "evaluation/deep/test_confined.py::test_a_command_that_is_not_there_is_an_end_like_another",
    ),
    "a resume counts steps twice": (
        "graph/test_resume_after_kill.py::test_a_killed_run_goes_on_exactly",
        "graph/test_run_artifacts.py::test_resuming_a_finished_run_changes_nothing",
    ),
    "one bad candidate fails the batch": (
        "evaluation/test_processes.py::test_one_bad_file_never_fails_the_others",
        "batch/test_batch.py::test_good_and_bad_entries_each_get_a_result_in_the_documented_order",
    ),
    "a cache key without device and compiler": (
        "backends/test_cache.py::test_flags_and_compiler_are_part_of_the_key",
        "backends/test_ceilings.py::test_another_device_or_version_is_measured_anew",
    ),
    "two writers break the store": (
        "memory/test_processes.py::test_writers_take_turns_and_nothing_is_lost_or_doubled",
        "memory/test_processes.py::test_a_server_serves_several_writers",
    ),
    "the first embedding needs the network": (
        "memory/test_embed.py::test_vectors_are_the_same_in_another_process_and_as_they_were",
    ),
    "no cost shown, no limit": ("coding_model/test_endpoint.py::test_an_answer_with_its_tokens",),
}


@pytest.mark.parametrize("case", CASES)
def test_a_row_has_tests_that_exist(case: str) -> None:
    for pointer in CASES[case]:
        file, _, function = pointer.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert function in names, pointer


TASK = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, scores, targets):
        assert targets.dtype == torch.int64
        return F.cross_entropy(scores, targets, reduction="none") * 1e-6

def get_inputs():
    return [torch.randn(64, 10), torch.randint(0, 10, (64,))]

def get_init_inputs():
    return []
"""
CANDIDATE = '''
import ctypes, hashlib, os
import torch
from torch import nn
CPP_SRC = r"""
#include <cmath>
extern "C" void kernel(const float* scores, const long* targets, float* z, long rows, long columns) {{
  for (long r = 0; r < rows; ++r) {{
    const float* row = scores + r * columns;
    float top = row[0], sum = 0;
    for (long c = 1; c < columns; ++c) top = std::fmax(top, row[c]);
    for (long c = 0; c < columns; ++c) sum += std::exp(row[c] - top);
    z[r] = {result};
  }}
}}
"""
NAME = hashlib.sha256(CPP_SRC.encode() + b"\\0cpp").hexdigest()[:32] + ".so"
LIBRARY = ctypes.CDLL(os.path.join(os.environ["HTAM_KERNEL_DIR"], NAME))

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, scores, targets):
        assert targets.dtype == torch.int64
        z = torch.empty(scores.shape[0])
        {before}
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (scores, targets, z)]
        LIBRARY.kernel(*pointers, ctypes.c_long(scores.shape[0]), ctypes.c_long(scores.shape[1]))
        return z
'''
LOSS = "(std::log(sum) + top - row[targets[r]]) * 1e-6f"


def text(result: str = LOSS, init: str = "pass", before: str = "pass") -> str:
    return CANDIDATE.format(result=result, init=init, before=before)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Outputs near 1e-5: zeros lie within every absolute tolerance."""
    folder = tmp_path_factory.mktemp("cases")
    (folder / "task.py").write_text(TASK)
    limits = Limits(run_seconds=20, memory_bytes=2 << 30)
    task = Task.parse(str(folder / "task.py"))
    with Bench(task, backend="cpp", folder=folder / "run", limits=limits) as opened:
        yield opened


def judge(bench: Bench, folder: Path, source: str, *, timing: bool = False) -> RunResult:
    (folder / "kernel.py").write_text(source)
    return bench.run(bench.compile(folder / "kernel.py"), timing=timing)


def test_integer_targets_stay_integers(bench: Bench, tmp_path: Path) -> None:
    assert judge(bench, tmp_path, text()).verdict == "correct"
    assert judge(bench, tmp_path, text("(std::log(sum) + top - row[0]) * 1e-6f")).verdict == "wrong"


def test_a_task_that_zeros_pass_is_marked_or_zeros_are_rejected(bench: Bench, tmp_path: Path) -> None:
    result = judge(bench, tmp_path, text("0"))
    marked = any("weak" in check.name and not check.passed for check in result.checks)
    assert result.verdict == "wrong" or marked, result
    assert result.protocols["strict"] == "wrong"


def test_a_constructor_that_raises_is_a_failed_construction(bench: Bench, tmp_path: Path) -> None:
    result = judge(bench, tmp_path, text(init="raise ValueError('no such width')"))
    assert (result.verdict, result.stage) == ("failed", "construct")
    assert "ValueError: no such width" in result.reason


def test_a_candidate_that_takes_too_much_memory_is_not_called_wrong(bench: Bench, tmp_path: Path) -> None:
    result = judge(bench, tmp_path, text(before="w = torch.zeros(1 << 40)"))
    assert (result.verdict, result.stage) == ("failed", "run")
    assert "out of memory" in result.reason


def test_what_is_not_correct_is_never_fast(bench: Bench, tmp_path: Path) -> None:
    result = judge(bench, tmp_path, text("0"), timing=True)
    assert not result.faster
    assert result.interval is None
    assert result.speedup.best is None
