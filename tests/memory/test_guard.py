"""Negative transfer: memory of other tasks that misleads loses its weight, and only then."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htam_agent.memory import guard
from htam_agent.memory.attention import score_directions
from htam_agent.memory.guard import FOREIGN_COUNTS, SOURCE_COUNTS, Judged, judged
from htam_agent.memory.index import MemoryIndex
from htam_agent.memory.model import Experience, SelectionState
from htam_agent.memory.retrieval import retrieve_strategies
from tests.support.memory import DEVICE, TASK, experience, index, state, strategy

NUMBERED = tuple(strategy(f"{owner}-{number}", owner) for owner in ("wide", "reuse") for number in range(4))
HERE = "cross-entropy"


def learned_elsewhere(tasks: int = 5) -> list[Experience]:
    """On alike tasks every way to `wide` closed most of the gap, and `reuse` broke even."""
    return [
        experience(
            f"{task}/{each.id}/{run}", each.direction, each.id, 0.7 if each.direction == "wide" else -0.05, task=task
        )
        for task in (f"softmax-{number}" for number in range(tasks))
        for each in NUMBERED
        for run in range(2)
    ]


def runs_until_reuse(known: list[Experience], most: int = 20) -> int:
    """First steps of runs on a task where only `reuse` helps, until one takes it."""
    measured: list[Experience] = []
    for number in range(1, most + 1):
        memory, here = index(*known, *measured, strategies=NUMBERED), state(task=HERE)
        chosen = score_directions(here, memory)[0].direction
        if chosen == "reuse":
            return number
        used = retrieve_strategies(here, chosen, memory)[0].strategy.id
        measured.append(experience(f"own {number}", chosen, used, None, task=HERE))
    return most


def test_a_memory_that_misleads_is_left_behind_after_a_few_own_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's Cross Entropy: what was learned on other tasks makes this one worse than a cold start."""
    guarded = runs_until_reuse(learned_elsewhere())
    assert guarded <= 5
    monkeypatch.setattr(
        "htam_agent.memory.posterior.judged", lambda attended, *_: Judged(attended.weights, attended.weights)
    )
    assert runs_until_reuse(learned_elsewhere()) == 20, "without the guard the case misleads"


def test_a_memory_that_helps_keeps_its_weight() -> None:
    own = [experience(f"own {number}", "wide", f"wide-{number}", 0.7, task=HERE) for number in range(3)]
    found = trusts(index(*learned_elsewhere(), *own, strategies=NUMBERED), state(task=HERE))
    assert set(found.values()) == {1.0}


def trusts(memory: MemoryIndex, here: SelectionState) -> dict[str, float]:
    """Task and device -> trust."""
    attended = memory.evidence.attended(here)
    found = judged(attended, memory.evidence, memory.strategies)
    records = [memory.evidence.records[position] for position in attended.positions]
    return {f"{one.task} on {one.device.name}": float(t) for one, t in zip(records, found.trust, strict=True)}


def test_each_misprediction_of_own_measurements_takes_trust_and_says_so() -> None:
    def after(failures: int) -> float:
        own = [experience(f"own {number}", "wide", f"wide-{number}", None, task=HERE) for number in range(failures)]
        return trusts(index(*learned_elsewhere(), *own, strategies=NUMBERED), state(task=HERE))["softmax-0 on A CPU"]

    found = [after(failures) for failures in range(4)]
    assert found[0] == 1.0
    assert found == sorted(found, reverse=True)
    assert found[3] < 0.2
    own = [experience(f"own {number}", "wide", f"wide-{number}", None, task=HERE) for number in range(3)]
    scored = score_directions(state(task=HERE), index(*learned_elsewhere(), *own, strategies=NUMBERED))
    wide = next(one for one in scored if one.direction == "wide")
    assert "count less, since their source mispredicts what was measured elsewhere" in wide.why
    assert {one.task: one.trust for one in wide.experiences}[HERE] == 1.0


def test_one_source_that_contradicts_all_others_is_doubted_before_anything_is_measured_here() -> None:
    liar = [
        experience(f"liar/{each.id}", each.direction, each.id, 0.9 if each.direction == "reuse" else None, task="liar")
        for each in NUMBERED
    ]
    found = trusts(index(*learned_elsewhere(), *liar, strategies=NUMBERED), state(task=HERE))
    assert found["liar on A CPU"] < 0.4
    assert found["softmax-0 on A CPU"] == 1.0


def test_a_device_that_misleads_is_doubted_and_the_same_task_elsewhere_is_not() -> None:
    odd = DEVICE.model_copy(update={"name": "An odd CPU"})
    there = [
        one.model_copy(update={"id": f"odd {one.id}", "device": odd, "verdict": "failed", "time_after_ms": None})
        for one in learned_elsewhere(2)
        if one.direction == "wide"
    ]
    found = trusts(index(*learned_elsewhere(), *there, strategies=NUMBERED), state(task=HERE))
    assert found["softmax-0 on An odd CPU"] < 0.6
    assert found["softmax-0 on A CPU"] == 1.0


def test_others_never_outvote_own_measurements() -> None:
    """However many tasks agree, the task at hand is not doubted, and its few steps outweigh theirs."""
    own = [experience(f"own {number}", "wide", "wide-0", None, task=HERE) for number in range(6)]
    memory = index(*learned_elsewhere(40), *own, strategies=NUMBERED)
    assert trusts(memory, state(task=HERE))[f"{HERE} on A CPU"] == 1.0
    scored = {one.strategy.id: one.score for one in retrieve_strategies(state(task=HERE), "wide", memory)}
    assert scored["wide-0"] < min(score for name, score in scored.items() if name != "wide-0")


def test_what_other_sources_count_is_capped_and_own_steps_are_not() -> None:
    def counted(records: list[Experience]) -> float:
        memory = index(*records)
        attended = memory.evidence.attended(state())
        return float(judged(attended, memory.evidence, memory.strategies).weights.sum())

    def steps(number: int, task: str) -> list[Experience]:
        return [experience(f"{task} {each}", "wide", "wide-loads", 0.5, task=task) for each in range(number)]

    assert counted(steps(50, "another")) == pytest.approx(SOURCE_COUNTS)
    assert counted(steps(50, "another") + steps(50, "a-third")) == pytest.approx(FOREIGN_COUNTS)
    assert counted([one for task in range(20) for one in steps(9, f"t{task}")]) == pytest.approx(FOREIGN_COUNTS)
    assert counted(steps(50, TASK)) == pytest.approx(50)


def counts_of(memory: MemoryIndex, used: str) -> dict[str, float]:
    """What the experiences of each task count for a strategy."""
    attended = memory.evidence.attended(state())
    records = [memory.evidence.records[position] for position in attended.positions]
    found: dict[str, float] = {}
    for one, weight in zip(records, judged(attended, memory.evidence, memory.strategies).weights.tolist(), strict=True):
        if one.strategy == used:
            found[one.task] = found.get(one.task, 0.0) + weight
    return found


@pytest.mark.parametrize("liars", [1, 4, 30])
def test_doubted_sources_do_not_use_up_the_cap_of_a_trusted_one(liars: int) -> None:
    def steps(task: str, used: str, share: float) -> list[Experience]:
        return [experience(f"{task} {used} {number}", "wide", used, share, task=task) for number in range(3)]

    told = [(f"liar-{number}", used, -1.0) for number in range(liars) for used in ("wide-loads", "wide-stores")]
    told += [("honest", "wide-loads", 0.7), ("honest", "wide-stores", 0.7), (TASK, "wide-loads", 0.7)]
    memory = index(*[step for one in told for step in steps(*one)])
    found, trust = counts_of(memory, "wide-stores"), trusts(memory, state())
    assert trust["liar-0 on A CPU"] < 0.01
    assert found["honest"] == pytest.approx(SOURCE_COUNTS * trust["honest on A CPU"], rel=0.01)
    assert sum(count for task, count in found.items() if task.startswith("liar")) < 0.01


def test_many_doubted_sources_count_no_more_together_than_one_cap_times_their_trust() -> None:
    own = [experience(f"own {number}", "wide", "wide-0", None, task=HERE) for number in range(3)]
    memory = index(*learned_elsewhere(40), *own, strategies=NUMBERED)
    attended = memory.evidence.attended(state(task=HERE))
    found = judged(attended, memory.evidence, memory.strategies)
    records = [memory.evidence.records[position] for position in attended.positions]
    other = [one.strategy == "wide-1" for one in records]
    trust = trusts(memory, state(task=HERE))["softmax-0 on A CPU"]
    assert trust < 0.5
    assert found.weights[other].sum() == pytest.approx(FOREIGN_COUNTS * trust)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", HERE]), st.sampled_from(NUMBERED), st.floats(-1, 1)), max_size=12))
@settings(max_examples=30, deadline=None)
def test_trust_is_a_share_and_own_steps_have_all_of_it(steps: list[tuple[str, Experience, float]]) -> None:
    records = [
        experience(f"e{number}", used.direction, used.id, share, task=task)
        for number, (task, used, share) in enumerate(steps)
    ]
    found = trusts(index(*records, strategies=NUMBERED), state(task=HERE))
    assert all(0.0 <= trust <= 1.0 for trust in found.values())
    assert found.get(f"{HERE} on A CPU", 1.0) == 1.0


def test_a_single_source_without_neighbours_is_believed() -> None:
    memory = index(experience("a", "wide", "wide-loads", 1.0, task="another"))
    assert trusts(memory, state()) == {"another on A CPU": 1.0}


def test_known_value() -> None:
    """One foreign step of share 0.9 against one own of -0.1, prior 0.2: W = 1, q = 0.2 + 0.7 / 3."""
    memory = index(
        experience("a", "wide", "wide-loads", 0.9, task="another"), experience("b", "wide", "wide-loads", -0.1)
    )
    word = 0.2 + 0.7 / 3
    expected = np.exp((0.3**2 - (word + 0.1) ** 2) / (2 * guard.SPREAD**2))
    assert trusts(memory, state())["another on A CPU"] == pytest.approx(expected)
