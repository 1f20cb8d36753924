"""Causes of failure through the graph: in the step's record, in the memory, and back in a later prompt."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from htam_agent.api import optimize
from htam_agent.coding.base import Code
from htam_agent.graph.context import Session
from htam_agent.graph.experiences import judged_attempts
from htam_agent.graph.state import Candidate
from htam_agent.memory.pitfalls import WORDS
from htam_agent.memory.store import MemoryStore
from htam_agent.runs.folder import RunFolder
from htam_agent.services import open_memory
from htam_agent.settings import Settings
from htam_agent.verdict import CompileResult, RunResult
from tests.support.endpoint import Reply, ScriptedEndpoint, completion, scripted
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


class Following(ScriptedEndpoint):
    """A model that follows the first strategy that it is offered, and is faster each time."""

    def __init__(self) -> None:
        super().__init__([])
        self.followed: list[str] = []
        self.again: list[str] = []

    def _next(self, body: dict[str, object], headers: dict[str, str]) -> Reply:
        asked = json.dumps(body["messages"]).replace("\\n", "\n")
        found = re.findall(r"^(cpp-[a-z-]+): ", asked, re.MULTILINE)
        self.again += [name for name in found if name in self.followed]
        self.followed.append(found[0])
        file = f"# strategy: {found[0]}\n# instant: {len(self.followed)}.1\n\n\nclass ModelNew:\n    pass\n"
        return Reply(200, completion(f"```python\n{file}```\n", usage=(100, 10)))


def test_a_strategy_that_the_best_kernel_was_made_with_is_not_offered_to_a_model_again(tmp_path: Path) -> None:
    with Following().running() as server:
        result = optimize(str(TASK), **settings_of(tmp_path, server.url, steps=4))
    assert [step.improved for step in result.steps] == [True] * 4
    assert isinstance(server, Following)
    assert server.again == [], server.followed


@pytest.mark.parametrize("infrastructure", [True, False])
def test_a_fault_of_harness_or_machine_teaches_nothing(tmp_path: Path, infrastructure: bool) -> None:
    folder = RunFolder(tmp_path / "run")
    place = folder.candidate(1, 0, 0).relative_to(folder.root)
    folder.write(f"{place}/code.json", Code(source="kernel", strategy="wide-loads"))
    folder.write(f"{place}/compile.json", CompileResult(ok=True, backend="cpp", folder=""))
    folder.write(
        f"{place}/run.json",
        RunResult(verdict="quarantined", stage="run", reason="the harness failed", infrastructure=infrastructure),
    )
    session = cast(Session, SimpleNamespace(folder=folder))
    found = judged_attempts(session, Candidate(step=1, index=0))
    assert [attempt.verdict for attempt in found] == ([] if infrastructure else ["quarantined"])
