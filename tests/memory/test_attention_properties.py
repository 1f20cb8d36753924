"""What holds of the score whatever the memory holds: random experiences of several tasks, devices and paths."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htam_agent.memory.attention import OFFERED, score_directions, soft_maximum
from htam_agent.memory.draws import normal, uniform
from htam_agent.memory.index import MemoryIndex
from htam_agent.memory.model import Experience, ScoredDirection, SelectionState
from htam_agent.memory.retrieval import retrieve_strategies
from htam_agent.verdict import DeviceFacts
from tests.support.memory import DEVICE, TASK, experience, features, index, state

DIRECTION_OF = {"wide-loads": "wide", "wide-stores": "wide", "keep-row": "reuse"}
DEVICES = (
    DEVICE,
    DEVICE.model_copy(update={"name": "Another CPU"}),
    DeviceFacts(backend="cpp", name="A CPU", architecture="aarch64"),
    DeviceFacts(backend="cuda", name="A GPU", architecture="sm_90"),
)
SHARES = st.none() | st.floats(-1, 1)
PATHS = st.lists(st.sampled_from(["wide", "reuse"]), max_size=6).map(tuple)
MODES = st.sampled_from(["full", "no-prefix", "no-position", "no-hierarchy", "no-local", "no-update", "random", "none"])


@st.composite
def experiences(draw: st.DrawFn, most: int = 10) -> list[Experience]:
    def one(number: int) -> Experience:
        used = draw(st.sampled_from(sorted(DIRECTION_OF)))
        return experience(
            f"e{number}",
            DIRECTION_OF[used],
            used,
            draw(SHARES),
            task=draw(st.sampled_from([TASK, "another", "a-third"])),
            device=draw(st.sampled_from(DEVICES)),
            prefix=draw(PATHS),
            features=features(rows=2 ** draw(st.integers(6, 18))),
            run=draw(st.sampled_from(["this-run", "that-run"])),
        )

    return [one(number) for number in range(draw(st.integers(0, most)))]


@st.composite
def states(draw: st.DrawFn, **fixed: object) -> SelectionState:
    prefix = draw(PATHS)
    fields: dict[str, object] = {
        "prefix": prefix,
        "prefix_outcomes": tuple(draw(st.floats(-1, 1)) for _ in prefix),
        "steps_left": draw(st.integers(1, 6)),
        "seed": draw(st.integers(0, 10**6)),
        "bottleneck": draw(st.sampled_from(["unknown", "memory", "compute"])),
        "tried": tuple(draw(st.sets(st.sampled_from(sorted(DIRECTION_OF)), max_size=2))),
        "run": "this-run",
    }
    return state(**{**fields, **fixed})


def ranked(memory: MemoryIndex, here: SelectionState) -> dict[str, float]:
    return {
        each.strategy.id: each.score for name in ("wide", "reuse") for each in retrieve_strategies(here, name, memory)
    }


def score(memory: MemoryIndex, here: SelectionState, direction: str) -> ScoredDirection | None:
    return next((one for one in score_directions(here, memory) if one.direction == direction), None)


@given(experiences(), states(), MODES, st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_answers_do_not_depend_on_the_order_of_storing_nor_on_when_they_are_asked(
    records: list[Experience], here: SelectionState, mode: str, seed: int
) -> None:
    here = here.model_copy(update={"mode": mode})
    memory, shuffled = index(*records), index(*random.Random(seed).sample(records, len(records)))
    scored = score_directions(here, memory)
    score_directions(state(), memory)
    assert scored == score_directions(here, shuffled) == score_directions(here, memory)
    for name in ("wide", "reuse"):
        assert retrieve_strategies(here, name, memory) == retrieve_strategies(here, name, shuffled)


@given(experiences(), states(), MODES)
@settings(max_examples=30, deadline=None)
def test_scores_are_bounded_and_are_the_sum_of_their_terms(
    records: list[Experience], here: SelectionState, mode: str
) -> None:
    memory, here = index(*records), here.model_copy(update={"mode": mode})
    for scored in score_directions(here, memory):
        counts = math.fsum(term.counts for term in scored.terms)
        mean = math.fsum(term.counts * term.share for term in scored.terms) / counts
        added = math.fsum(term.share for term in scored.terms if not term.counts)
        assert scored.score == pytest.approx(max(-1.0, min(1.0, mean + added)))
        assert all(0 < one.weight <= 1 and 0 <= one.trust <= 1 for one in scored.experiences)
        assert [one.weight for one in scored.experiences] == sorted(
            (o.weight for o in scored.experiences), reverse=True
        )
    assert all(-1 <= value <= 1 for value in ranked(memory, here).values())


@given(experiences(most=25), states(), st.sampled_from(sorted(DIRECTION_OF)), st.floats(-1, 1), st.floats(-1, 1))
@settings(max_examples=30, deadline=None)
def test_a_better_outcome_of_the_same_task_never_lowers_its_strategy_and_hardly_its_direction(
    records: list[Experience], here: SelectionState, used: str, one: float, other: float
) -> None:
    """The direction's score may fall a little: the trust in other sources, which speak of it too, follows."""
    here = here.model_copy(update={"tried": ()})
    new = [experience("new", DIRECTION_OF[used], used, share) for share in sorted((one, other))]
    low, high = (index(*records, last) for last in new)
    before, after = score(low, here, DIRECTION_OF[used]), score(high, here, DIRECTION_OF[used])
    assert before is not None
    assert after is not None
    assert after.score >= before.score - 0.05
    assert ranked(high, here)[used] >= ranked(low, here)[used] - 1e-12


@given(states(steps_left=1), experiences())
@settings(max_examples=30, deadline=None)
def test_without_evidence_it_is_the_prior_and_strangers_are_no_evidence(
    here: SelectionState, records: list[Experience]
) -> None:
    far = features(operator_class="convolution", dtype="float64", rows=1, columns=1 << 60, row_bytes=1 << 62)
    strangers = [record.model_copy(update={"features": far}) for record in records]
    assert score_directions(here, index(*strangers)) == score_directions(here, index())
    assert ranked(index(*strangers), here) == ranked(index(), here)
    for scored in score_directions(here, index()):
        assert not scored.experiences
        assert {term.name for term in scored.terms} <= {"fit", "strategies", "transition", "damping"}


@given(
    experiences(), states(steps_left=1), st.integers(0, 10**6), st.sampled_from(["full", "no-prefix", "no-position"])
)
@settings(max_examples=30, deadline=None)
def test_the_last_step_explores_nothing(records: list[Experience], here: SelectionState, seed: int, mode: str) -> None:
    memory, here = index(*records), here.model_copy(update={"mode": mode})
    other = here.model_copy(update={"seed": seed})
    assert score_directions(here, memory) == score_directions(other, memory)
    assert ranked(memory, here) == ranked(memory, other)


@given(experiences(), states(), MODES)
@settings(max_examples=30, deadline=None)
def test_only_what_applies_is_offered_in_any_mode(records: list[Experience], here: SelectionState, mode: str) -> None:
    memory, here = index(*records), here.model_copy(update={"mode": mode})
    left = {name for name in DIRECTION_OF if name not in here.tried}
    assert {one.direction for one in score_directions(here, memory)} == {DIRECTION_OF[name] for name in left}
    for name in ("wide", "reuse"):
        found = {each.strategy.id for each in retrieve_strategies(here, name, memory)}
        flat = mode in ("no-hierarchy", "none")
        assert found == {each for each in left if flat or DIRECTION_OF[each] == name}


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.data())
def test_the_soft_maximum_lies_between_mean_and_maximum_and_never_falls(
    values: list[float], data: st.DataObject
) -> None:
    worth, best = soft_maximum(values), sorted(values, reverse=True)[:OFFERED]
    assert math.fsum(best) / len(best) - 1e-12 <= worth <= best[0] + 1e-12
    assert soft_maximum(data.draw(st.permutations(values))) == worth
    place = data.draw(st.integers(0, len(values) - 1))
    raised = [*values[:place], data.draw(st.floats(values[place], 1)), *values[place + 1 :]]
    assert soft_maximum(raised) >= worth - 1e-12
    assert soft_maximum([values[0]] * len(values)) == pytest.approx(values[0])


def test_seeds_are_told_apart_by_step_and_strategy() -> None:
    """The draws are the same on every machine, and step 2 of a seed is not step 1 of the next."""
    drawn = uniform(state(seed=7, steps_left=3), ["a", "b"])
    assert drawn.tolist() == pytest.approx([0.7168597635279275, 0.5863412867086346], abs=1e-15)
    many = normal(state(seed=7, steps_left=3), [str(number) for number in range(4000)])
    assert abs(many.mean()) < 0.06
    assert abs(many.std() - 1) < 0.05
    assert uniform(state(seed=7, steps_left=4), ["a"]) != uniform(state(seed=7, steps_left=3), ["a"])
