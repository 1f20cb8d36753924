"""Several candidates and their repairs in one step: no strategy is written twice, every judged attempt is learned."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from htam_agent.coding.base import Code, Coder, CodeRequest, RepairRequest
from htam_agent.coding.plan import Plan
from htam_agent.graph import nodes
from htam_agent.graph.runner import run_graph
from htam_agent.memory.model import Experience
from htam_agent.operator import OperatorProfile
from htam_agent.runs.records import Result, RunOptions
from htam_agent.services import make_context
from htam_agent.settings import Settings
from htam_agent.task import Task
from htam_agent.words import Backend
from tests.support.command import ROOT

TASK = Task.parse(str(ROOT / "tests" / "tasks" / "row_softmax.py"))
CANDIDATES, REPAIRS = 2, 1


@dataclass
class BreakingCoder:
    """The template coder, whose files of the first `broken` answers do not compile."""

    inner: Coder
    broken: int
    name: str = "breaking"
    answers: list[Code] = field(default_factory=list)

    def initial_plan(self, operator: OperatorProfile, backend: Backend) -> Plan | None:
        return self.inner.initial_plan(operator, backend)

    def generate(self, request: CodeRequest) -> Code:
        return self._kept(self.inner.generate(request))

    def repair(self, request: RepairRequest) -> Code:
        return self._kept(self.inner.repair(request))

    def _kept(self, code: Code) -> Code:
        if code.source and len(self.answers) < self.broken:
            assert "#include" in code.source
            source = code.source.replace("#include", "#error broken on purpose\n#include", 1)
            code = code.model_copy(update={"source": source})
        self.answers.append(code)
        return code


def run(folder: Path, broken: int) -> tuple[Result, BreakingCoder, list[Experience]]:
    options = RunOptions(backend="cpp", steps=1, seed=1, candidates=CANDIDATES, repairs=REPAIRS)
    with closing(make_context(Settings.load({"runs": folder}), options, folder / "run")) as context:
        base = context.memory.strategies["cpp-threads-over-rows"]
        more = [base.model_copy(update={"id": f"own-{letter}"}) for letter in "abcd"]
        context.memory.add_strategies(more)
        coder = BreakingCoder(context.coder, broken)
        context.coder = coder
        result = run_graph(context, TASK, context.start_run(TASK), lambda event: None)
        return result, coder, list(context.memory.experiences)


@pytest.fixture(scope="module", params=[CANDIDATES, CANDIDATES * (1 + REPAIRS)])
def outcome(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Result, BreakingCoder, list[Experience]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "AT_FLOOR", math.inf)  # on a busy machine the original may look as fast as the floor
        yield run(tmp_path_factory.mktemp("attempts"), request.param)


def test_no_two_attempts_of_a_step_write_the_same_strategy(
    outcome: tuple[Result, BreakingCoder, list[Experience]],
) -> None:
    written = [code.strategy for code in outcome[1].answers if code.source]
    assert len(written) > CANDIDATES, "a repair was written"
    assert len(set(written)) == len(written)


def test_every_judged_attempt_is_an_experience_with_its_own_verdict(
    outcome: tuple[Result, BreakingCoder, list[Experience]],
) -> None:
    _, coder, learned = outcome
    written = [code.strategy for code in coder.answers if code.source]
    assert sorted(experience.strategy for experience in learned) == sorted(written)
    verdicts = {experience.strategy: experience.verdict for experience in learned}
    assert [verdicts[name] for name in written[: coder.broken]] == ["failed"] * min(coder.broken, len(written))
    assert {verdicts[name] for name in written[coder.broken :]} <= {"correct"}
    assert len({experience.id for experience in learned}) == len(learned)
    for experience in learned:
        assert experience.seconds > 0
        assert (experience.time_after_ms is None) == (experience.verdict != "correct")
        assert bool(experience.reason) == (experience.verdict == "failed")
        assert experience.id.rpartition(":")[2] in ("0", "1")


def test_a_result_names_what_the_last_attempt_came_to(
    outcome: tuple[Result, BreakingCoder, list[Experience]],
) -> None:
    result, coder, _ = outcome
    expected = "correct" if coder.broken == CANDIDATES else "failed"
    assert result.steps[0].verdict == expected
    assert [candidate.attempts for candidate in result.steps[0].candidates] == [2, 2]
