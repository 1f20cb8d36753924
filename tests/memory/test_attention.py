"""Which direction next: the score, its properties, and its reason in words."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htam_agent.memory.attention import SYMPTOM_SHARE, TEMPERATURE, masked_directions, score_directions
from htam_agent.memory.embed import HashingEmbedder
from htam_agent.memory.index import Memory, MemoryIndex
from htam_agent.memory.model import Experience, SelectionState
from htam_agent.memory.retrieval import retrieve_strategies
from htam_agent.memory.seeding import load_seed
from htam_agent.verdict import DeviceFacts
from tests.support.memory import DEVICE, DIRECTIONS, experience, features, index, state, strategy, transition

LAST = {"steps_left": 1}  # no exploration: the score is the expectation itself
PRIOR = 0.2  # of a strategy that says nothing else
SHARES = st.none() | st.floats(-1, 1)


def scores(memory: Memory, here: SelectionState) -> dict[str, float]:
    return {scored.direction: scored.score for scored in score_directions(here, memory)}


def test_without_evidence_the_score_is_the_prior() -> None:
    found = scores(index(), state(**LAST))
    # Two counts each of the symptom, of the most promising strategy and of the transition out of start.
    assert found["wide"] == pytest.approx((2 * SYMPTOM_SHARE * 0.6 + 2 * PRIOR + 2 * 0.3) / 6)
    assert found["reuse"] == pytest.approx((2 * SYMPTOM_SHARE * 0.5 + 2 * PRIOR + 2 * 0.2) / 6)


def test_a_direction_is_worth_its_most_promising_usable_strategy() -> None:
    strong, weak = strategy("a", "wide"), strategy("b", "wide")
    strong, weak = strong.model_copy(update={"prior": 0.8}), weak.model_copy(update={"prior": 0.1})
    memory = index(strategies=(strong, weak))
    fresh, used = scores(memory, state(**LAST)), scores(memory, state(tried=("a",), **LAST))
    worth = 0.8 + TEMPERATURE * math.log((1 + math.exp((0.1 - 0.8) / TEMPERATURE)) / 2)
    assert fresh["wide"] - used["wide"] == pytest.approx(2 * (worth - 0.1) / 6)


def test_the_same_state_and_seed_give_the_same_answer_and_seeds_differ() -> None:
    memory = index(experience("a", "wide", "wide-loads"))
    here = state(steps_left=3, seed=1)
    assert score_directions(here, memory) == score_directions(here, memory)
    assert len({score_directions(state(steps_left=3, seed=seed), index())[0].direction for seed in range(200)}) == 2
    assert scores(memory, here) != scores(memory, state(steps_left=3, seed=2))
    assert scores(memory, state(seed=1, **LAST)) == scores(memory, state(seed=2, **LAST))


def test_exploration_shrinks_with_evidence() -> None:
    def spread(memory: Memory) -> float:
        mean = scores(memory, state(**LAST))["wide"]
        found = [scores(memory, state(steps_left=3, seed=seed))["wide"] - mean for seed in range(100)]
        return sum(abs(difference) for difference in found) / len(found)

    assert spread(index(*[experience(f"e{i}", "wide", "wide-loads") for i in range(60)])) < 0.5 * spread(index())


@given(st.lists(st.tuples(st.sampled_from(["wide", "reuse"]), SHARES), max_size=12), st.integers(0, 1000))
@settings(max_examples=40)
def test_the_order_of_storing_does_not_matter_and_the_score_is_bounded(
    steps: list[tuple[str, float | None]], seed: int
) -> None:
    used = {"wide": "wide-loads", "reuse": "keep-row"}
    records = [experience(f"e{i}", owner, used[owner], share) for i, (owner, share) in enumerate(steps)]
    shuffled = random.Random(seed).sample(records, len(records))
    here = state(steps_left=4, seed=seed)
    assert score_directions(here, index(*records)) == score_directions(here, index(*shuffled))
    assert all(-1 <= score <= 1 for score in scores(index(*records), here).values())


@given(st.lists(SHARES, max_size=6), st.floats(-1, 1), st.floats(-1, 1))
@settings(max_examples=40)
def test_better_evidence_never_lowers_the_score(before: list[float | None], one: float, other: float) -> None:
    known = [experience(f"e{i}", "wide", "wide-loads", share) for i, share in enumerate(before)]
    low, high = min(one, other), max(one, other)
    worse = scores(index(*known, experience("new", "wide", "wide-loads", low)), state(**LAST))
    better = scores(index(*known, experience("new", "wide", "wide-loads", high)), state(**LAST))
    assert better["wide"] >= worse["wide"] - 1e-12


def test_experience_shifts_the_choice_and_much_evidence_is_believed() -> None:
    good = [experience(f"g{i}", "reuse", "keep-row", 0.9) for i in range(3)]
    bad = [experience(f"b{i}", "wide", "wide-loads", None) for i in range(3)]
    assert score_directions(state(**LAST), index())[0].direction == "wide"
    assert score_directions(state(**LAST), index(*good, *bad))[0].direction == "reuse"
    many = [experience(f"g{i}", "reuse", "keep-row", 0.9) for i in range(400)]
    assert scores(index(*many), state(**LAST))["reuse"] == pytest.approx(0.9, abs=0.02)


def test_the_same_step_stored_twice_counts_once() -> None:
    once = index(experience("a", "wide", "wide-loads", 0.9))
    twice = index(experience("a", "wide", "wide-loads", 0.1), experience("a", "wide", "wide-loads", 0.9))
    assert score_directions(state(**LAST), once) == score_directions(state(**LAST), twice)


def raised(record: Experience, here: SelectionState) -> float:
    """How far one experience lifts its direction above the prior."""
    return scores(index(record), here)["wide"] - scores(index(), here)["wide"]


def test_what_is_nearer_counts_more() -> None:
    here = state(**LAST)
    near = raised(experience("a", "wide", "wide-loads", 1.0), here)
    other_name = DEVICE.model_copy(update={"name": "Another CPU"})
    other_machine = other_name.model_copy(update={"architecture": "aarch64"})
    gpu = DeviceFacts(backend="cuda", name="A GPU", architecture="sm_90")
    by_device = [
        raised(experience("a", "wide", "wide-loads", 1.0, device=d), here) for d in (other_name, other_machine, gpu)
    ]
    assert near > by_device[0] > by_device[1] > by_device[2] > 0
    elsewhere = raised(experience("a", "wide", "wide-loads", 1.0, features=features(operator_class="scan")), here)
    assert near > elsewhere > 0
    assert (
        raised(experience("a", "wide", "wide-loads", 1.0, features=features(rows=1, columns=4 << 40)), here) < near / 4
    )


def test_the_architecture_is_known_from_the_compute_capability() -> None:
    gpu = DeviceFacts(backend="cuda", name="A GPU", architecture="sm_90")
    memory = index(experience("a", "reuse", "keep-row-on-gpu", 1.0, device=gpu))

    def score(capability: int) -> float:
        return scores(memory, state(backend="cuda", device=None, compute_capability=capability, **LAST))["reuse"]

    assert score(90) > score(80)


def test_the_path_matters_and_nearer_steps_weigh_more() -> None:
    memory = index()
    after_wide = scores(memory, state(prefix=("wide",), prefix_outcomes=(0.5,), **LAST))
    after_reuse = scores(memory, state(prefix=("reuse",), prefix_outcomes=(0.5,), **LAST))
    assert after_wide["reuse"] > after_reuse["reuse"]
    gap = [
        scores(memory, state(prefix=("wide", *["other"] * far), prefix_outcomes=(0.5,) * (far + 1), **LAST))["reuse"]
        for far in range(4)
    ]
    # The transition's prior lies above the symptom's: the further back, the nearer to the symptom alone.
    assert gap == sorted(gap, reverse=True)
    assert len(set(gap)) == 4


def test_experiences_on_the_same_path_weigh_more() -> None:
    here = state(prefix=("reuse", "wide"), prefix_outcomes=(0.5, 0.5), **LAST)
    lifts = [
        raised(experience("a", "wide", "wide-loads", 1.0, prefix=prefix), here)
        for prefix in (("reuse", "wide"), ("wide", "wide"), ("wide", "reuse"))
    ]
    assert lifts == sorted(lifts, reverse=True)
    assert len(set(lifts)) == 3


def test_directions_without_a_usable_strategy_are_masked_with_a_reason() -> None:
    here = state(tried=("wide-loads", "wide-stores"))
    assert [scored.direction for scored in score_directions(here, index())] == ["reuse"]
    assert masked_directions(here, index()) == {"wide": "wide-loads: it was tried on the best kernel so far"}
    on_gpu = state(backend="cuda", device=None)
    assert [scored.direction for scored in score_directions(on_gpu, index())] == ["reuse"]
    assert masked_directions(on_gpu, index()) == {"wide": "no strategy for cuda"}
    assert score_directions(state(tried=("wide-loads", "wide-stores", "keep-row")), index()) == []


def test_what_just_failed_here_is_damped_and_recovers() -> None:
    def wide(*outcomes: float) -> float:
        prefix = ("wide", *["other"] * (len(outcomes) - 1))
        return scores(index(), state(prefix=prefix, prefix_outcomes=outcomes, **LAST))["wide"]

    assert wide(0.5) > wide(-0.1)
    assert wide(0.5) > wide(0.0)
    assert wide(-0.1) < wide(-0.1, 0.5) < wide(-0.1, 0.5, 0.5) < wide(0.5)


def test_evidence_of_used_up_strategies_says_little() -> None:
    memory = index(*[experience(f"e{i}", "wide", "wide-loads", 1.0) for i in range(3)])
    fresh, used = scores(memory, state(**LAST))["wide"], scores(memory, state(tried=("wide-loads",), **LAST))["wide"]
    assert fresh > used > scores(index(), state(**LAST))["wide"]


def test_the_bottleneck_decides_between_symptoms() -> None:
    strategies = (strategy("a", "wide"), strategy("b", "reuse"))
    cures = (
        DIRECTIONS[0].model_copy(update={"symptoms": {"memory": 1.0}}),
        DIRECTIONS[1].model_copy(update={"symptoms": {"compute": 1.0}}),
    )
    memory = index(directions=cures, strategies=strategies, transitions=())
    assert score_directions(state(bottleneck="memory", **LAST), memory)[0].direction == "wide"
    assert score_directions(state(bottleneck="compute", **LAST), memory)[0].direction == "reuse"
    assert scores(memory, state(bottleneck="unknown", **LAST)) == {
        "wide": pytest.approx((SYMPTOM_SHARE + PRIOR) / 2),
        "reuse": pytest.approx((SYMPTOM_SHARE + PRIOR) / 2),
    }


def test_why_names_every_term_for_a_person() -> None:
    memory = index(experience("a", "reuse", "keep-row", 0.5), transitions=(transition("wide", "reuse", 0.4),))
    here = state(bottleneck="memory", prefix=("reuse", "wide"), prefix_outcomes=(-0.1, 0.5), steps_left=2, seed=3)
    why = next(scored.why for scored in score_directions(here, memory) if scored.direction == "reuse")
    for part in (
        "of the remaining gap expected",
        "0.28 by its fit to a memory bottleneck",
        "0.40 after wide: wide prepares reuse (risk: reuse may be useless)",
        "measured +0.50 on average in 1 steps like this",
        "nearest keep-row on softmax-0123456789ab (A CPU): 2.00x",
        "0.15 off, since it closed nothing earlier in this run",
        "exploration ",
    ):
        assert part in why
    first = score_directions(state(**LAST), index())[0].why
    assert "nothing profiled yet" in first
    assert "to begin with: start prepares wide" in first
    assert "exploration" not in first
    failed = score_directions(state(**LAST), index(experience("a", "wide", "wide-loads", None)))
    assert any("wide-loads on softmax-0123456789ab (A CPU): failed" in scored.why for scored in failed)


def test_the_shipped_seed_begins_a_long_softmax_with_what_was_best_on_an_h200() -> None:
    """One excellent strategy among siblings with priors near zero still decides its direction."""
    shipped = load_seed()
    memory = MemoryIndex.of(HashingEmbedder(), shipped.directions, shipped.strategies, shipped.transitions)
    long_rows = features(columns=393216, row_bytes=4 * 393216)
    here = state(
        backend="cuda", device=None, compute_capability=90, features=long_rows, plan_mapping="block-row",
        plan_staging="none", **LAST,
    )  # fmt: skip
    first = score_directions(here, memory)[0].direction
    assert retrieve_strategies(here, first, memory)[0].strategy.id == "cuda-cluster-8-pipelined"
