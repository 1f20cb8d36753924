"""The run's clock: time inside nodes, summed over processes, with the work that a killed process left on disk."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from langgraph.runtime import Runtime

from htam_agent.graph.context import Context
from htam_agent.graph.measure import measured
from htam_agent.graph.state import Candidate, State
from tests.graph.test_resume_after_kill import killed_at
from tests.support.command import htam

RUNTIME: Runtime[Context] = Runtime()


def test_time_in_nodes_is_added_and_time_between_them_is_not() -> None:
    @measured
    def node(state: State, runtime: Runtime[Context]) -> State:
        time.sleep(0.05)
        return {"stop": ""}

    first = node({"seconds": 10.0}, RUNTIME)
    time.sleep(0.3)
    second = node(first, RUNTIME)
    assert 10.05 <= first["seconds"] < 10.25
    assert 0.05 <= second["seconds"] - first["seconds"] < 0.25


def test_work_found_on_disk_counts_with_its_own_time() -> None:
    candidate = Candidate(step=1, index=0, tool_seconds=2.0)

    @measured
    def node(state: State, runtime: Runtime[Context]) -> State:
        return {"candidates": {candidate.key: candidate.model_copy(update={"tool_seconds": 7.0})}}

    again = node({"seconds": 1.0, "candidates": {candidate.key: candidate}}, RUNTIME)
    assert again["seconds"] == pytest.approx(6.0)
    stale = candidate.model_copy(update={"opening": 1})
    fresh = node({"seconds": 1.0, "candidates": {candidate.key: stale}}, RUNTIME)
    assert fresh["seconds"] == pytest.approx(8.0), "another opening's time is not this one's"


@pytest.mark.slow
def test_a_pause_before_the_resume_is_nobodys_time(tmp_path: Path) -> None:
    pause = 40
    begun = time.monotonic()
    run = killed_at("compile", 2, tmp_path)
    active = time.monotonic() - begun
    time.sleep(pause)
    begun = time.monotonic()
    answer = htam("resume", str(run), "--json", folder=tmp_path)
    active += time.monotonic() - begun
    steps, cost = answer.last["steps"], answer.last["cost"]
    assert isinstance(steps, list)
    assert isinstance(cost, dict)
    total = sum(step["seconds"] for step in steps)
    assert 0 < total < cost["seconds"] < active
    assert steps[1]["seconds"] < pause
    assert all(0 < step["agent_seconds"] <= step["seconds"] for step in steps)
