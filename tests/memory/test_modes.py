"""Each memory mode takes one thing away and leaves the rest as it was."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htam_agent.memory.attention import score_directions
from htam_agent.memory.evidence import position_weights
from htam_agent.memory.index import MemoryIndex
from htam_agent.memory.model import Experience, SelectionState
from htam_agent.memory.modes import MemoryMode
from htam_agent.memory.retrieval import retrieve_strategies
from tests.support.memory import DIRECTIONS, TRANSITIONS, experience, index, state, strategy

PATH = ("wide", "reuse", "wide")
OUTCOMES = (0.4, -0.1, 0.2)
RECORDS = (
    experience("a", "wide", "wide-loads", 0.9, prefix=PATH, prefix_outcomes=OUTCOMES),
    experience("b", "reuse", "keep-row", None, prefix=("reuse", "wide", "reuse"), prefix_outcomes=OUTCOMES),
    experience("c", "wide", "wide-stores", 0.1, task="another"),
)


def on_path(mode: str, path: tuple[str, ...] = PATH, **changes: object) -> SelectionState:
    return state(mode=mode, prefix=path, prefix_outcomes=OUTCOMES, **{"steps_left": 3, **changes})


def scores(memory: MemoryIndex, here: SelectionState) -> dict[str, float]:
    return {one.direction: one.score for one in score_directions(here, memory)}


def names(memory: MemoryIndex, here: SelectionState, direction: str) -> list[str]:
    return [each.strategy.id for each in retrieve_strategies(here, direction, memory)]


def test_no_prefix_looks_at_no_direction_of_the_path() -> None:
    other = ("reuse", "wide", "reuse")
    moved = [one.model_copy(update={"prefix": other}) for one in RECORDS if one.prefix] + [RECORDS[2]]
    found = scores(index(*RECORDS), on_path("no-prefix"))
    assert found == scores(index(*RECORDS), on_path("no-prefix", other)) == scores(index(*moved), on_path("no-prefix"))
    terms = {term.name for one in score_directions(on_path("no-prefix"), index(*RECORDS)) for term in one.terms}
    assert terms == {"fit", "strategies", "exploration"}
    assert scores(index(*RECORDS), on_path("full")) != scores(index(*RECORDS), on_path("full", other))


@pytest.mark.parametrize("mode", ["no-prefix", "no-hierarchy"])
@pytest.mark.parametrize("outcomes", [(), (0.5, 0.5), (-0.1, -0.1), (-0.1,) * 6])
def test_without_the_path_neither_its_length_nor_its_outcomes_tell_states_apart(
    mode: str, outcomes: tuple[float, ...]
) -> None:
    """Neither those of the state at hand nor those of the experiences."""
    path = {"prefix": PATH[:1] * len(outcomes), "prefix_outcomes": outcomes}
    moved = [one.model_copy(update=path) for one in RECORDS]
    expected = scores(index(*RECORDS), on_path(mode))
    assert scores(index(*RECORDS), state(mode=mode, steps_left=3, **path)) == pytest.approx(expected)
    assert scores(index(*moved), on_path(mode)) == pytest.approx(expected)
    attended = index(*moved).evidence.attended(state(mode=mode))
    assert len(attended) == len(RECORDS)


def test_no_position_weighs_every_step_the_same() -> None:
    """Without experiences the path speaks through transitions and damping alone."""
    steps = list(zip(PATH, OUTCOMES, strict=True))
    turned = steps[1:] + steps[:1]

    def score(mode: str, path: list[tuple[str, float]]) -> dict[str, float]:
        here = state(mode=mode, prefix=[name for name, _ in path], prefix_outcomes=[share for _, share in path])
        return scores(index(), here)

    assert score("no-position", steps) == pytest.approx(score("no-position", turned))
    assert score("full", steps) != pytest.approx(score("full", turned))
    one_step = steps[:1]
    assert score("no-position", one_step) == score("full", one_step)


@given(st.integers(1, 12))
def test_positions_weigh_half_with_each_step_or_all_alike_with_the_same_sum(count: int) -> None:
    decayed, alike = position_weights(count), position_weights(count, decay=False)
    assert decayed.tolist() == [0.5**place for place in range(count)]
    assert len(set(alike.tolist())) == 1
    assert alike.sum() == pytest.approx(decayed.sum())


def test_no_hierarchy_is_one_list_by_similarity_and_record() -> None:
    memory, here = index(*RECORDS), on_path("no-hierarchy")
    flat = retrieve_strategies(here, "wide", memory)
    assert flat == retrieve_strategies(here, "reuse", memory)
    assert {each.strategy.id for each in flat} == {"wide-loads", "wide-stores", "keep-row"}
    assert [each.score for each in flat] == sorted((each.score for each in flat), reverse=True)
    first = score_directions(here, memory)[0]
    assert (first.direction, first.score) == (flat[0].strategy.direction, flat[0].score)
    assert "flat list" in first.why


def test_no_hierarchy_knows_neither_directions_nor_transitions_nor_path() -> None:
    plain = tuple(one.model_copy(update={"symptoms": {}}) for one in DIRECTIONS)
    memory, bare = index(*RECORDS), index(*RECORDS, directions=plain, transitions=())
    here = on_path("no-hierarchy")
    assert scores(memory, here) == scores(bare, here) == scores(memory, on_path("no-hierarchy", ("reuse", *PATH[1:])))
    # A sibling's failure says nothing where there are no directions.
    failed = experience("f", "wide", "wide-stores", None)
    flat = {each.strategy.id: each.score for each in retrieve_strategies(state(mode="no-hierarchy"), "", index(failed))}
    before = {each.strategy.id: each.score for each in retrieve_strategies(state(mode="no-hierarchy"), "", index())}
    assert flat["wide-loads"] == before["wide-loads"]
    assert flat["wide-stores"] < before["wide-stores"]


def test_no_local_chooses_directions_as_ever_and_draws_strategies() -> None:
    memory = index(*RECORDS)
    assert scores(memory, on_path("no-local", seed=3)) == scores(memory, on_path("full", seed=3))
    first = Counter(names(memory, state(mode="no-local", seed=seed), "wide")[0] for seed in range(400))
    assert set(first) == {"wide-loads", "wide-stores"}
    assert all(150 < count < 250 for count in first.values())
    assert names(memory, state(mode="no-local"), "reuse") == ["keep-row"]


def test_random_draws_directions_and_strategies_whatever_was_measured() -> None:
    first = Counter(score_directions(state(mode="random", seed=seed), index())[0].direction for seed in range(400))
    assert set(first) == {"wide", "reuse"}
    assert all(150 < count < 250 for count in first.values())
    for seed in range(20):
        here = state(mode="random", seed=seed)
        assert score_directions(here, index()) == score_directions(here, index(*RECORDS))
        assert names(index(), here, "wide") == names(index(*RECORDS), here, "wide")
    assert score_directions(state(mode="random"), index())[0].why == "Drawn at random from 2 (memory mode random)."


def test_none_draws_among_all_strategies_and_the_direction_follows() -> None:
    """Uniform over strategies, so that `wide` with two of three comes first twice as often."""
    found: Counter[str] = Counter()
    for seed in range(600):
        here = state(mode="none", seed=seed)
        order = names(index(), here, "anything")
        assert score_directions(here, index())[0].direction == ("reuse" if order[0] == "keep-row" else "wide")
        assert names(index(*RECORDS), here, "wide") == order
        found[order[0]] += 1
    assert all(150 < found[name] < 250 for name in ("wide-loads", "wide-stores", "keep-row"))


@given(st.lists(st.tuples(st.sampled_from(["this-run", "that-run"]), st.floats(-1, 1)), max_size=8), st.integers(0, 99))
@settings(max_examples=30)
def test_no_update_reads_nothing_of_its_own_run(steps: list[tuple[str, float]], seed: int) -> None:
    records = [experience(f"e{i}", "wide", "wide-loads", share, run=run) for i, (run, share) in enumerate(steps)]
    before: list[Experience] = [record for record in records if record.run != "this-run"]
    here = state(mode="no-update", run="this-run", steps_left=4, seed=seed)
    assert score_directions(here, index(*records)) == score_directions(here, index(*before))
    assert retrieve_strategies(here, "wide", index(*records)) == retrieve_strategies(here, "wide", index(*before))
    assert scores(index(*before), here) == scores(index(*before), here.model_copy(update={"mode": "full"}))


def test_full_reads_its_own_run() -> None:
    own = experience("e", "wide", "wide-loads", 0.9, run="this-run")
    assert scores(index(own), state(run="this-run")) != scores(index(), state(run="this-run"))


@pytest.mark.parametrize("mode", get_args(MemoryMode))
def test_every_mode_is_repeatable_and_each_seed_its_own(mode: str) -> None:
    strategies = tuple(strategy(f"{owner}-{number}", owner) for owner in ("wide", "reuse") for number in range(6))
    memory = index(strategies=strategies, transitions=TRANSITIONS)
    here = state(mode=mode, steps_left=4, seed=1)
    again = index(strategies=strategies[::-1], transitions=TRANSITIONS)
    assert score_directions(here, memory) == score_directions(here, again)
    assert names(memory, here, "wide") == names(again, here, "wide")
    orders = {tuple(names(memory, here.model_copy(update={"seed": seed}), "wide")) for seed in range(20)}
    assert len(orders) > 5
