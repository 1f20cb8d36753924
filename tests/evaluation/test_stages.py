"""Where the time of an evaluation goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from htam_agent.evaluation.messages import Ask, Order, Prepare, Trial
from htam_agent.evaluation.stages import StageClock, kind_of
from htam_agent.verdict import RunResult
from tests.evaluation.samples import candidate


def test_an_inner_stage_counts_for_itself_alone() -> None:
    clock = StageClock()
    began = time.monotonic()
    with clock.stage("outer"):
        time.sleep(0.01)
        with suppress(ValueError), clock.stage("inner"):
            time.sleep(0.03)
            raise ValueError("the time counts all the same")
    passed = time.monotonic() - began
    seconds = clock.take()
    assert seconds["inner"] >= 0.03
    assert seconds["outer"] >= 0.01
    assert sum(seconds.values()) <= passed
    assert clock.take() == {}


def test_a_message_is_named_by_what_it_asks_for() -> None:
    assert kind_of(Order(trial=Trial(shift=0, watch=True))) == "trial"
    assert kind_of(Order(imports=True)) == "imports"
    assert kind_of(Ask(prepare=Prepare(seed=1))) == "prepare"


def test_a_result_says_where_its_time_went(judge: Callable[..., RunResult]) -> None:
    result = judge(candidate())
    known = {"compile", "spawn", "candidate imports", "candidate trial", "reference prepare", "reference judge", "end"}
    assert known <= set(result.stages)
    assert all(value >= 0 for value in result.stages.values())
    total = sum(value for name, value in result.stages.items() if name != "compile")
    assert 0.5 * result.seconds <= total <= result.seconds
