"""Causes of failure through the graph: in the step's record, in the memory, and back in a later prompt."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from htam_agent.api import optimize
from htam_agent.memory.pitfalls import WORDS
from htam_agent.memory.store import MemoryStore
from htam_agent.services import open_memory
from htam_agent.settings import Settings
from tests.support.endpoint import scripted
from tests.support.instant import TASK, answer, settings_of
from tests.support.memory import DEVICE, experience


def test_a_failure_is_recorded_with_its_cause_and_the_repair_is_told(tmp_path: Path) -> None:
    with scripted(answer("broken"), answer("wrong"), answer("1.5")) as server:
        result = optimize(str(TASK), **settings_of(tmp_path, server.url, steps=1, repairs=1))
        requests = [str(body["messages"][-1]["content"]) for body in server.requests]
    (candidate,) = result.steps[0].candidates
    assert candidate.verdict == "wrong"
    assert candidate.cause == "values"
    assert "does not build" in requests[1]
    with closing(MemoryStore.open(tmp_path / "memory")) as memory:
        assert sorted(one.cause for one in memory.experiences) == ["syntax", "values"]


def test_what_recurs_in_the_memory_is_a_pitfall_in_the_next_prompt(tmp_path: Path) -> None:
    with closing(open_memory(Settings.load({"memory": tmp_path / "memory"}))) as memory:
        memory.add_experiences(
            [
                experience(
                    f"{name}:{step}", strategy.direction, name, None, run="other", step=step, verdict="wrong",
                    cause="boundary", device=DEVICE,
                )
                for name, strategy in memory.strategies.items() if strategy.backend == "cpp"
                for step in (1, 2)
            ]
        )  # fmt: skip
    with scripted(answer("1.5")) as server:
        optimize(str(TASK), **settings_of(tmp_path, server.url, steps=1))
        (request,) = server.requests
    assert f"learned: {WORDS['boundary']} in 2 of 2 tries" in str(request["messages"])
