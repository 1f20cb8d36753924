"""A result says in numbers why each direction was taken: the terms of its score and the steps that weighed most."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from htam_agent.graph.runner import run_graph
from htam_agent.runs.records import Result, RunOptions, StepRecord
from tests.support.table_run import ROWS, table_context, table_memory


def test_the_terms_and_experiences_of_each_choice_reach_the_result(tmp_path: Path) -> None:
    with closing(table_memory(tmp_path / "memory")) as memory:
        results = []
        for number in range(2):
            context = table_context(tmp_path / f"run{number}", memory, RunOptions(backend="cpp", steps=2, seed=5))
            results.append(run_graph(context, ROWS, context.start_run(ROWS), lambda event: None))
        known = {one.id for one in memory.experiences}
    first, second = results
    assert not first.steps[0].experiences, "nothing was measured before the first run"
    for step in (*first.steps, *second.steps):
        names = [term.name for term in step.terms]
        assert names[:2] == ["fit", "strategies"]
        assert ("exploration" in names) == (step.step == 1), "the last step explores nothing"
    weighed = [one for step in second.steps for one in step.experiences]
    assert weighed
    assert {one.id for one in weighed} <= known
    assert any(one.id.startswith("run0-") for one in weighed), "the run before counts"
    assert all(one.task == ROWS.id and one.trust == 1.0 for one in weighed)
    printed = json.loads(second.to_json())["steps"][0]
    assert printed["terms"][1]["counts"] > 0
    assert Result.model_validate(json.loads(second.to_json())) == second


def test_records_without_terms_are_read() -> None:

    old = {"step": 1, "direction": "d", "why": "w", "strategy": "s", "verdict": "correct"}
    assert StepRecord.model_validate(old).terms == ()


def test_an_earlier_run_of_the_same_name_counts_in_no_update(tmp_path: Path) -> None:
    """Not reading its own run must not hide one that used a folder of that name before."""
    why = {}
    with closing(table_memory(tmp_path / "memory")) as memory:
        for place in ("before", "other"):
            options = RunOptions(
                backend="cpp", steps=1, seed=5, memory_mode="full" if place == "before" else "no-update"
            )
            context = table_context(tmp_path / place / "run", memory, options)
            why[place] = run_graph(context, ROWS, context.start_run(ROWS), lambda event: None).steps[0].why
        assert why["other"] != why["before"], "what the run before measured is counted"
