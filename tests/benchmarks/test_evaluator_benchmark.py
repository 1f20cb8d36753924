"""The parts of the evaluator's benchmark that need no evaluator: results that go on, counts and intervals."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.evaluator.intervals import wilson
from benchmarks.evaluator.items import Budget, Items, read_items
from benchmarks.evaluator.machine import descendants, growth, resident_megabytes
from benchmarks.evaluator.shrinking import shrunken
from benchmarks.evaluator.summary import summarise
from benchmarks.evaluator.tasks import TAILS, TRACED, tail_kernel
from benchmarks.evaluator.turnaround import ORDER, SPREAD


@given(st.integers(1, 2000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_the_interval_holds_the_share_and_its_ends_are_the_score_tests(trial: tuple[int, int]) -> None:
    hits, total = trial
    interval = wilson(hits, total)
    assert interval is not None
    low, high = interval
    share = hits / total
    assert 0.0 <= low <= share <= high <= 1.0
    for end in interval:
        if 0.0 < end < 1.0:
            score = abs(share - end) / math.sqrt(end * (1.0 - end) / total)
            assert score == pytest.approx(1.959964, rel=1e-5)


def test_no_trials_have_no_interval_and_no_share_is_above_one() -> None:
    assert wilson(0, 0) is None
    with pytest.raises(ValueError, match="3 of 2"):
        wilson(3, 2)


def test_results_go_on_and_errors_are_tried_again(tmp_path: Path) -> None:
    first = Items(tmp_path / "a.jsonl", "hostile", [])
    first.add_run(machine="here")
    first.add("1", value=1)
    first.add("2", error="the machine broke")
    again = Items(tmp_path / "b.jsonl", "hostile", [tmp_path / "a.jsonl"])
    assert list(Budget(100.0).each(["1", "2", "3"], again)) == ["2", "3"]
    again.add("2", value=2)
    parts, runs = read_items([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert parts["hostile"]["2"]["value"] == 2
    assert len(runs) == 1
    assert runs[0]["run"]["machine"] == "here"


def test_a_budget_ends_before_an_item_that_does_not_fit(tmp_path: Path) -> None:
    items = Items(tmp_path / "a.jsonl", "turnaround", [])
    assert list(Budget(5.0).each(["a", "b"], items, expected=6.0)) == []
    assert list(Budget(5.0).each(["a", "b"], items, expected=1.0)) == ["a", "b"]


def test_growth_leaves_out_what_is_learned_at_first() -> None:
    assert growth([10.0, 50.0, *[100.0] * 14]) == 0.0
    leak = growth([float(number) for number in range(40)])
    assert leak == pytest.approx(20.0)
    assert growth([None, 1.0]) is None


def test_a_child_and_its_memory_are_seen() -> None:
    command = [sys.executable, "-c", "kept = bytearray(b'x') * (64 << 20); print('ready', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in descendants(os.getpid())
        megabytes = resident_megabytes(child.pid)
        assert megabytes is not None
        assert 64.0 <= megabytes < 200.0
        child.communicate(b"\n")
    assert child.pid not in descendants(os.getpid())
    assert resident_megabytes(child.pid) is None


def test_sizes_are_cut_down_and_nothing_else() -> None:
    text = (
        "import torch\nM = 16384 * 4\nbatch = 16\nnames = 'a'\n\ndef get_inputs():\n    return [torch.rand(M, 70000)]\n"
    )
    cut = shrunken(text, 128)
    assert "M = 128\nbatch = 16\nnames = 'a'\n" in cut
    assert "torch.rand(M, 70000)" in cut


def test_twenty_tasks_ten_of_them_for_the_spread() -> None:
    assert len(set(ORDER)) == len(ORDER) == len({*TRACED, *TAILS}) == 20
    assert len(set(SPREAD)) == 10
    assert set(SPREAD) < set(ORDER)


@pytest.mark.parametrize("name", TAILS)
@pytest.mark.parametrize("backend", ["cuda", "cpp"])
def test_kernels_behind_a_library_are_whole_files(name: str, backend: str) -> None:
    text = tail_kernel(name, "cuda" if backend == "cuda" else "cpp")
    assert "EXPRESSION" not in text
    compile(text, name, "exec")


def test_the_summary_counts_what_the_parts_found(tmp_path: Path) -> None:
    speedups = [1.00, 1.02, 1.01]
    runs = [
        {"verdict": "correct", "speedup": {"best": value}, "times_ms": {"candidate": 2.0}, "stages": {"compile": 0.25}}
        for value in speedups
    ]
    lines = [
        {"part": "turnaround", "run": {"machine": {"name": "a GPU"}, "command": "python x"}},
        {
            "part": "turnaround",
            "key": "1/26",
            "task": "26_GELU_",
            "verdict": "correct",
            "warm_built_s": 1.5,
            "warm_cached_s": 1.25,
            "cold_s": 20.0,
            "open_s": 8.0,
            "baselines_s": 4.0,
            "first": runs[0],
            "runs": runs[1:],
        },
        {"part": "turnaround", "key": "1/1", "verdict": "error", "reason": "it broke"},
        {
            "part": "kernelbench",
            "key": "1/26",
            "task": "26_GELU_",
            "kernelbench": {"seconds": 120.0, "correct": True},
            "ours": {"warm_s": 1.5, "cold_s": 12.0, "verdict": "correct"},
            "ratio_warm": 80.0,
            "ratio_cold": 10.0,
        },
        {
            "part": "cheats",
            "key": "T1",
            "twin": False,
            "good": True,
            "outcome": "refused",
            "verdict": "wrong",
            "stage": "run",
        },
        {
            "part": "cheats",
            "key": "T2",
            "twin": False,
            "good": False,
            "outcome": "missed",
            "verdict": "correct",
            "stage": "time",
        },
        {
            "part": "cheats",
            "key": "T1h",
            "twin": True,
            "good": True,
            "outcome": "correct",
            "verdict": "correct",
            "stage": "time",
        },
        {"part": "mutants", "key": "control/cpp/a", "verdict": "correct", "protocols": {"strict": "correct"}},
        {
            "part": "mutants",
            "key": "cpp/a/0",
            "kind": "off by one",
            "built": True,
            "witnessed": True,
            "operator": "a",
            "protocols": {"strict": "wrong", "verified": "correct"},
        },
        {"part": "mutants", "key": "cpp/a/1", "kind": "off by one", "built": True, "witnessed": False, "operator": "a"},
        {"part": "mutants", "key": "cpp/a/2", "kind": "off by one", "built": False, "operator": "a"},
        {
            "part": "hostile",
            "key": "0",
            "evaluations": 125,
            "lost": 1,
            "left_over": 2,
            "hostile": {},
            "undeserved": [],
            "growth_megabytes": {"main": 1.0, "device": None},
            "verdicts": {"correct": 100},
            "median_s": 0.5,
        },
    ]
    file = tmp_path / "parts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = summarise([file])
    summary = results["summary"]
    assert summary["turnaround_median_s"] == 1.5
    assert summary["kernelbench_ratio_L1_26"] == summary["kernelbench_ratio_median"] == 80.0
    assert summary["spread_max"] == pytest.approx(0.02 / 1.01)
    assert (summary["cheats_refused"], summary["cheats_total"]) == (1, 2)
    assert (summary["twins_correct"], summary["twins_total"]) == (1, 1)
    assert summary["mutants"]["strict"] == {"killed": 1, "total": 1}
    assert summary["mutants"]["verified"] == {"killed": 0, "total": 1}
    assert summary["hostile_run"] == {"evaluations": 125, "lost": 1, "left_over": 2}
    assert results["details"]["spread"]["tasks"]["1/26"]["within"] is False, "2 % at 2 ms"
    assert results["details"]["turnaround"]["not_correct"] == {"1/1": "it broke"}
    assert results["details"]["mutants"]["equivalents"].keys() == {"cpp/a/1"}
    assert results["machines"] == [{"name": "a GPU"}]


def test_a_summary_of_nothing_has_every_key() -> None:
    summary = summarise([])["summary"]
    assert summary["turnaround_median_s"] is None
    assert summary["mutants"]["strict"] == {"killed": 0, "total": 0}
