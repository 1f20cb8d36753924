"""The ablation: every mode on the small table, misses that are loud, and statistics on cases whose answer is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ablation import ablate, publish, written
from benchmarks.ablations.bench import TableBench, TableMiss
from benchmarks.ablations.dependence import dependence
from benchmarks.ablations.figures import draw
from benchmarks.ablations.replay import Link, order_of, replay_chain
from benchmarks.ablations.report import BEGIN, END, markdown, put_into
from benchmarks.ablations.statistics import MODES, summary
from benchmarks.plans.table import KernelRow, Table, TaskRow, operator_task
from htam_agent.memory.modes import MemoryMode
from htam_agent.verdict import Times
from tests.support.table_run import ROWS, TABLE, small_table

STEPS = 6


def test_a_chain_is_the_same_again_and_every_step_is_in_the_table() -> None:
    table = small_table()
    first = replay_chain(table, "full", 3, STEPS, table.complete())
    assert [link.row() for link in first] == [
        link.row() for link in replay_chain(table, "full", 3, STEPS, table.complete())
    ]
    assert [link.task for link in first] == order_of(table.complete(), 3)
    for link in first:
        assert len(link.speedups) == len(link.lows) == STEPS
        known = {row.speedup for row in table.of_task(link.task)}
        assert set(link.speedups) <= known | {None}
        best = [speedup or 0.0 for speedup in link.speedups]
        assert best == sorted(best), "the best so far never falls"
        assert link.verdicts in (["correct"] * len(link.strategies), ["at-floor"])


def test_a_plan_that_was_not_measured_ends_the_replay() -> None:
    whole = small_table()
    task = "swish"
    kept = {key: row for key, row in whole.plans.items() if key[0] != task or not row.strategies}
    torn = Table(whole.header, whole.tasks, whole.kernels, kept)
    with pytest.raises(TableMiss, match=r"no plan .* of swish"):
        replay_chain(torn, "full", 1, STEPS, [task])


def test_a_task_that_was_not_measured_or_has_changed_is_refused() -> None:
    other = operator_task("softmax")
    with pytest.raises(TableMiss, match="no task 'softmax'"):
        TableBench(small_table(), other)
    with pytest.raises(TableMiss, match="no task 'row_maximum' with the content"):
        TableBench(small_table(), ROWS.model_copy(update={"digest": "0" * 64}))


def test_the_command_reports_every_mode_and_draws(tmp_path: Path) -> None:
    result, links = ablate(TABLE, ["full", "random"], seeds=1, steps=3, processes=1)
    assert {link.mode for link in links} == {"full", "random"}
    assert result["tasks_left_out"] == []
    json.dumps(result, allow_nan=False)
    files = draw(result, tmp_path)
    assert [path.suffix for path in files] == [".svg", ".png"]
    text = files[0].read_text(encoding="utf-8")
    assert "random" in text
    assert text == draw(result, tmp_path)[0].read_text(encoding="utf-8")
    document = tmp_path / "memory.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    put_into(document, result, "ablation-cpu.svg")
    text = document.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "| random | 100.0% |" in text
    assert "| over full | step 1 | step 2 | step 3 |" in text, "every step, not chosen ones"
    assert "\nold\n" not in text
    put_into(document, result, "ablation-cpu.svg")
    assert document.read_text(encoding="utf-8") == text
    with pytest.raises(ValueError, match="does not have the marks"):
        put_into(files[0], result, "ablation-cpu.svg")


def link(mode: MemoryMode, task: str, speedup: float | None, place: int = 0, seed: int = 1) -> Link:
    low = None if speedup is None else 0.95 * speedup
    return Link(mode, seed, place, task, [speedup], [low], returned=True)


def test_the_report_says_where_a_mode_is_better_and_where_it_is_worse() -> None:
    links = [
        Link(mode, 1, 0, task, [first, second], [first, second], returned=True)
        for mode, (first, second) in {"full": (1.0, 2.0), "no-update": (1.5, 1.0), "random": (1.0, 2.0)}.items()
        for task in "ab"
    ]
    result = {
        "steps": 2, "chains": 1, "kernels": 1, "device": {"name": "CPU", "threads": 1}, "summary": summary(links, 2),
        "path_dependence": dependence(made_table(0.0)),
    }  # fmt: skip
    text = markdown(result, "figure.svg")
    assert "- `no-update`: better than `full` at step 1 (1.500); worse than `full` at step 2 (0.500)." in text
    assert "- `random`: no difference from `full` at any step." in text
    assert "| no-update | 1.500 [1.500, 1.500] | 0.500 [0.500, 0.500] |" in text


def test_an_earlier_result_is_reported_without_a_replay(tmp_path: Path) -> None:
    result, _ = ablate(TABLE, ["full", "random"], seeds=1, steps=2, processes=1)
    file, document = tmp_path / "result.json", tmp_path / "memory.md"
    file.write_text(json.dumps(result), encoding="utf-8")
    document.write_text(f"{BEGIN}\n{END}\n")
    publish(written(file), tmp_path, document)
    assert document.read_text(encoding="utf-8") == f"{BEGIN}\n{markdown(result, 'ablation-cpu.svg')}{END}\n"
    for wrong in ("{", "[]", '{"schema": "other"}'):
        file.write_text(wrong, encoding="utf-8")
        with pytest.raises(SystemExit, match=r"--from"):
            written(file)


def test_means_shares_and_intervals_of_a_known_case() -> None:
    links = [link("full", task, speedup) for task, speedup in zip("abcd", (4.0, 1.0, 0.5, None), strict=True)]
    links += [link("random", task, speedup) for task, speedup in zip("abcd", (2.0, 1.0, 0.5, None), strict=True)]
    found = summary(links, 1)
    full = found["modes"]["full"]["by_step"][0]
    assert full["correct"] == 0.75
    assert full["geomean_kernel"] == pytest.approx(2.0 ** (1 / 3))
    assert full["geomean_returned"] == pytest.approx(4.0**0.25), "the original is kept where no kernel is faster"
    assert full["fast_1"] == 0.25
    low, high = full["geomean_returned_interval"]
    assert 1.0 <= low <= full["geomean_returned"] <= high <= 4.0
    against = found["against_full"]["random"][0]
    assert against["ratio"] == pytest.approx(0.5 ** (1 / 3)), "over the tasks with a kernel"
    assert against["returned_ratio"] == pytest.approx(0.5**0.25)
    assert (against["tasks_worse"], against["tasks_better"]) == (1, 0)
    assert "full" not in found["against_full"]


def test_an_original_at_the_floor_is_correct_and_no_kernel() -> None:
    kept = replace(link("full", "a", None), verdicts=["at-floor"])
    cell = summary([kept, link("full", "b", 2.0)], 1)["modes"]["full"]["by_step"][0]
    assert (cell["correct"], cell["fast_1"]) == (1.0, 0.5)
    assert cell["geomean_kernel"] == pytest.approx(2.0)


def test_equal_modes_differ_by_nothing() -> None:
    links = [link(mode, task, speedup) for mode in MODES for task, speedup in (("a", 2.0), ("b", 3.0))]
    for cells in summary(links, 1)["against_full"].values():
        assert cells[0]["ratio"] == 1.0
        assert cells[0]["interval"] == [1.0, 1.0]


def made_table(interaction: float) -> Table:
    """Three tasks of 64 kernels over six strategies, each of which saves a tenth; a pair saves `interaction` more."""
    names = [f"s{number}" for number in range(6)]
    example = small_table().tasks["row_maximum"]
    table = Table(small_table().header)
    noise = np.random.default_rng(3)
    for task in ("t0", "t1", "t2"):
        moves = []
        for code in range(64):
            chosen = [name for place, name in enumerate(names) if code >> place & 1]
            time = math.exp(-0.1 * len(chosen) - interaction * ("s0" in chosen and "s1" in chosen))
            time *= math.exp(0.001 * noise.standard_normal())
            row = KernelRow(
                task=task, kernel=f"{code}", plans=[f"{code}"], strategies=chosen, steps=len(chosen), verdict="correct",
                time_ms=time, speedup=1 / time, fraction_of_floor=0.1, bottleneck="memory",
            )  # fmt: skip
            table.kernels[task, row.kernel] = row
            moves += [
                (f"{code}", name, f"{code | 1 << place}") for place, name in enumerate(names) if name not in chosen
            ]
        table.tasks[task] = TaskRow(
            task=task, digest="0" * 64, operator=example.operator, baselines=Times(best=1.0), policy=example.policy,
            kernels=64, moves=moves,
        )  # fmt: skip
    return table


def test_without_interaction_single_strategies_explain_the_table() -> None:
    found = dependence(made_table(0.0))
    assert found["levels"]["singles"] > 0.99
    assert found["levels"]["pairs"] == pytest.approx(found["levels"]["singles"], abs=0.01)


def test_an_interaction_is_seen_in_pairs_and_on_the_path() -> None:
    found = dependence(made_table(1.0))
    assert found["levels"]["singles"] < 0.95
    assert found["levels"]["pairs"] > 0.99
    for kind in ("same_task", "other_tasks"):
        gains = found["gains"][kind]
        assert gains["strategy"] < 0.7
        assert gains["strategy_and_path"] > 0.99
        assert gains["strategy_and_measured"] < 0.7, "what was measured says nothing here"


def test_a_table_too_small_says_nothing() -> None:
    table = made_table(0.0)
    few = replace(table, tasks={}, kernels={})
    assert dependence(few) == {
        "levels": {"tasks": {}, "singles": None, "pairs": None},
        "gains": {"steps": 0, "same_task": dict.fromkeys(NAMES), "other_tasks": dict.fromkeys(NAMES)},
    }


NAMES = ("strategy", "strategy_and_path", "strategy_and_measured", "all")
