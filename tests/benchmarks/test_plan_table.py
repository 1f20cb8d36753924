"""The plan table: what is reachable, what counts as one kernel, and a file that goes on where it ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.plan_table import STRATEGIES, choose_strategies
from benchmarks.plans.reachable import Closure, Reachable
from benchmarks.plans.table import Table, append, operator_names, operator_task, plan_key
from htam_agent.coding.base import BestSoFar, CodeRequest
from htam_agent.coding.plan import Plan
from htam_agent.coding.template import TemplateCoder
from htam_agent.memory.model import ScoredStrategy
from htam_agent.tracing import features_of
from htam_agent.verdict import Times
from tests.support.command import ROOT
from tests.support.table_run import TABLE, small_table

TASK = "row_maximum"


@pytest.fixture(scope="module")
def found() -> Reachable:
    return closure(6)


def closure(steps: int) -> Reachable:
    table = small_table()
    assert table.header is not None
    operator = table.tasks[TASK].operator
    strategies = {strategy.id: strategy for strategy in table.header.strategies}
    return Closure(operator, features_of(operator), strategies, steps).find()


def test_what_is_reachable_is_what_was_measured(found: Reachable) -> None:
    table = small_table()
    plans = {key for kernel in found.kernels.values() for key in kernel.plans}
    assert plans == {key for task, key in table.plans if task == TASK}
    assert len(found.kernels) == table.tasks[TASK].kernels
    assert len(table.tasks[TASK].moves) == len(found.moves)
    assert table.complete() == [TASK, "swish"]


def test_fewer_steps_reach_less_and_all_of_it_is_reached_by_more(found: Reachable) -> None:
    before: set[str] = set()
    for steps in (0, 1, 2):
        kernels = set(closure(steps).kernels)
        assert before < kernels <= set(found.kernels)
        before = kernels


@settings(max_examples=25, deadline=None)
@given(choices=st.lists(st.integers(0, 99), min_size=1, max_size=6))
def test_every_path_of_the_coder_stays_within_the_table(choices: list[int]) -> None:
    """Whatever strategy is taken at each step, and in whatever order."""
    table = small_table()
    header, task = table.header, table.tasks[TASK]
    assert header is not None
    coder, best, plan = TemplateCoder(header.strategies), None, None
    for choice in choices:
        strategy = header.strategies[choice % len(header.strategies)]
        request = CodeRequest(
            task_source="", operator=task.operator, backend="cpp", device=header.device, precision="tf32",
            policy=task.policy, strategies=[ScoredStrategy(strategy=strategy, score=0.0, why="")], best=best,
        )  # fmt: skip
        code = coder.generate(request)
        if code.refusal:
            continue
        plan = code.plan
        assert plan is not None
        assert (TASK, plan_key(plan)) in table.plans
        best = BestSoFar(source=code.source, plan=plan, times_ms=Times())


@given(order=st.permutations(["a", "b", "c"]))
def test_the_order_of_strategies_is_no_part_of_a_plan(order: list[str]) -> None:
    blocks = {f"slot_{name}": name for name in order}
    plan = Plan(backend="cpp", blocks=blocks, strategies=tuple(order))
    assert plan_key(plan) == plan_key(Plan(backend="cpp", blocks=dict(sorted(blocks.items()))))
    assert plan_key(plan) != plan_key(plan.model_copy(update={"unroll": 2}))


def test_a_file_that_was_cut_short_is_read_and_goes_on(tmp_path: Path) -> None:
    lines = TABLE.read_text(encoding="utf-8").splitlines(keepends=True)
    path = tmp_path / "table.jsonl"
    path.write_text("".join(lines[:-1]) + lines[-1][:40], encoding="utf-8")
    table = Table.read(path)
    row = json.loads(lines[-1])
    assert (row["task"], row["kernel"]) not in table.kernels
    assert row["task"] not in table.complete()
    append(path, [small_table().kernels[row["task"], row["kernel"]]])
    assert Table.read(path).complete() == small_table().complete()
    assert Table.read(tmp_path / "none.jsonl").complete() == []


def test_two_tables_are_not_mixed(tmp_path: Path) -> None:
    header = small_table().header
    assert header is not None
    append(tmp_path / "two.jsonl", [header, header.model_copy(update={"rounds": 99})])
    with pytest.raises(ValueError, match="two headers"):
        Table.read(tmp_path / "two.jsonl")


def test_the_strategies_of_the_table_are_in_the_seed() -> None:
    assert list(choose_strategies(None)) == list(STRATEGIES)
    with pytest.raises(SystemExit, match="no C\\+\\+ strategy 'cpp-magic'"):
        choose_strategies(["cpp-magic"])
    assert len(operator_names()) >= 12
    assert all(operator_task(name).name == name for name in operator_names())


@pytest.mark.slow
def test_the_command_measures_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "table.jsonl"
    command = [sys.executable, str(ROOT / "benchmarks" / "plan_table.py"), "--out", str(out)]
    command += ["--operators", "huber_loss", "--strategies", "cpp-vector-accumulators"]
    first = subprocess.run([*command, "--budget-seconds", "0.0"], check=True, capture_output=True, text=True)
    assert "budget is used up" in first.stdout
    subprocess.run(command, check=True, capture_output=True)
    table = Table.read(out)
    assert table.complete() == ["huber_loss"]
    rows = table.of_task("huber_loss")
    assert {row.verdict for row in rows} == {"correct"}
    assert all(row.interval is not None and row.time_ms and row.fraction_of_floor for row in rows)
    assert sorted(row.steps for row in rows) == [0, 1]
    before = out.read_text(encoding="utf-8")
    subprocess.run(command, check=True, capture_output=True)
    assert out.read_text(encoding="utf-8") == before, "nothing is measured twice"
