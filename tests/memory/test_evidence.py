"""Which experiences count in a state, how much, and that no short cut changes the answer."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from htam_agent.memory.attention import masked_directions, score_directions
from htam_agent.memory.evidence import NEAREST, OTHER_BACKEND, SAME_ARCHITECTURE, SAME_BACKEND, WEAKEST, Evidence
from htam_agent.memory.index import MemoryIndex
from htam_agent.memory.model import Experience, SelectionState
from htam_agent.memory.posterior import posterior
from htam_agent.memory.retrieval import retrieve_strategies
from htam_agent.memory.store import MemoryStore
from htam_agent.memory.vector import state_vector
from htam_agent.memory.why import explain
from htam_agent.verdict import DeviceFacts
from tests.support.memory import DEVICE, experience, features, index, state, strategy

GPU = DeviceFacts(backend="cuda", name="A GPU", architecture="sm_90")


def weights(evidence: Evidence, here: SelectionState) -> dict[str, float]:
    attended = evidence.attended(here)
    return {
        evidence.records[position].id: float(weight)
        for position, weight in zip(attended.positions, attended.weights, strict=True)
    }


def evidence_of(*records: Experience) -> Evidence:
    evidence = Evidence()
    for record in records:
        evidence.add(record)
    return evidence


def test_kinship_falls_from_device_to_architecture_to_backend_to_another_backend() -> None:
    places = {
        "same": DEVICE,
        "other versions": DEVICE.model_copy(update={"driver": "2", "compiler": "g++ 14", "torch": "2.13"}),
        "architecture": DEVICE.model_copy(update={"name": "Another CPU"}),
        "backend": DEVICE.model_copy(update={"name": "Another CPU", "architecture": "aarch64"}),
        "same name elsewhere": DEVICE.model_copy(update={"architecture": "aarch64"}),
        "gpu": GPU,
    }
    found = weights(
        evidence_of(*[experience(name, "wide", "wide-loads", device=device) for name, device in places.items()]),
        state(),
    )
    assert found == pytest.approx(
        {
            "same": 1.0,
            "other versions": 1.0,
            "architecture": SAME_ARCHITECTURE,
            "backend": SAME_BACKEND,
            "same name elsewhere": SAME_BACKEND,
            "gpu": OTHER_BACKEND,
        }
    )


def test_another_backend_speaks_of_the_direction_and_never_of_a_strategy() -> None:
    """Even under a strategy id that both backends have."""
    both = (strategy("a", "wide"), strategy("b", "wide"), strategy("keep-row", "reuse"))
    there = [experience(f"e{i}", "wide", "a", 1.0, device=GPU, task="another") for i in range(3)]
    memory, empty = index(*there, strategies=both), index(strategies=both)
    after, before = posterior(state(), memory), posterior(state(), empty)
    assert after.counts.tolist() == [0.0, 0.0, 0.0]
    lift = after.expected - before.expected
    assert lift[0] == lift[1] > 0
    assert lift[2] == 0
    scored = {one.direction: one.score for one in score_directions(state(), memory)}
    assert scored["wide"] > {one.direction: one.score for one in score_directions(state(), empty)}["wide"]


def test_own_is_the_same_task_on_the_same_device() -> None:
    elsewhere = DEVICE.model_copy(update={"name": "Another CPU"})
    evidence = evidence_of(
        experience("own", "wide", "wide-loads"),
        experience("task", "wide", "wide-loads", task="another"),
        experience("device", "wide", "wide-loads", device=elsewhere),
    )

    def own(here: SelectionState) -> set[str]:
        attended = evidence.attended(here)
        return {evidence.records[position].id for position in attended.positions[attended.own]}

    assert own(state()) == {"own"}
    assert own(state(device=elsewhere)) == {"device"}
    assert own(state(task="")) == own(state(device=None)) == own(state(task="unheard-of")) == set()


def random_records(count: int, draw: random.Random) -> list[Experience]:
    places = (DEVICE, DEVICE.model_copy(update={"name": "Another CPU"}), GPU)
    return [
        experience(
            f"e{number}",
            draw.choice(["wide", "reuse"]),
            draw.choice(["wide-loads", "wide-stores", "keep-row"]),
            draw.uniform(-1, 1),
            task=f"task-{number % 9}",
            device=draw.choice(places),
            prefix=tuple(draw.choices(["wide", "reuse"], k=draw.randint(0, 5))),
            features=features(rows=2 ** draw.randint(8, 16), columns=2 ** draw.randint(6, 14)),
        )
        for number in range(count)
    ]


def by_hand(records: list[Experience], here: SelectionState) -> dict[str, float]:
    """The documented weight of each record, one after the other."""

    def weight(record: Experience) -> float:
        distance = float(np.square(state_vector(record).astype(float) - state_vector(here).astype(float)).sum())
        kin = SAME_ARCHITECTURE if record.device.architecture == "x86_64" else SAME_BACKEND
        kin = 1.0 if record.device == DEVICE else kin
        kin = kin if record.device.backend == here.backend else OTHER_BACKEND
        ours, theirs = here.prefix[::-1][:4], record.prefix[::-1][:4]
        agreed = sum(0.5**j for j, (our, their) in enumerate(zip(ours, theirs, strict=False)) if our == their)
        compared = sum(0.5**j for j in range(max(len(ours), len(theirs))))
        return float(np.exp(-distance)) * kin * (0.4 + 0.6 * (agreed / compared if compared else 1.0))

    found = {record.id: weight(record) for record in records}
    border = max(WEAKEST, sorted(found.values(), reverse=True)[NEAREST - 1]) if len(records) > NEAREST else WEAKEST
    return {name: value for name, value in found.items() if value >= border - 1e-7}


@pytest.mark.parametrize("count", [40, 1500])
def test_the_fast_way_finds_what_the_formula_says(count: int) -> None:
    records = random_records(count, random.Random(count))
    evidence = evidence_of(*records)
    for prefix in ((), ("wide",), ("reuse", "wide", "wide", "reuse", "wide")):
        here = state(prefix=prefix, prefix_outcomes=(0.1,) * len(prefix), steps_left=3)
        found, expected = weights(evidence, here), by_hand(records, here)
        border = min(expected.values()) * (1 + 1e-5)
        assert {k for k, v in found.items() if v > border} == {k for k, v in expected.items() if v > border}
        assert found == pytest.approx({name: expected[name] for name in found}, rel=1e-4)


@pytest.mark.parametrize(
    ("ours", "theirs", "match"),
    [
        ("", "", 1.0),
        ("w", "w", 1.0),
        ("wrwrw", "rrwrw", 1.0),
        ("w", "r", 0.4),
        ("", "w", 0.4),
        ("r", "", 0.4),
        ("wr", "rw", 0.4),
        ("rw", "w", 0.4 + 0.6 * 1.0 / 1.5),
        ("wr", "rr", 0.4 + 0.6 * 1.0 / 1.5),
        ("wwww", "wwwr", 0.4 + 0.6 * 0.875 / 1.875),
    ],
)
def test_only_directions_agree_and_what_neither_path_has_says_nothing(ours: str, theirs: str, match: float) -> None:
    def path(letters: str) -> tuple[str, ...]:
        return tuple({"w": "wide", "r": "reuse"}[letter] for letter in letters)

    here, there = state(prefix=path(ours)), experience("e", "wide", "wide-loads", prefix=path(theirs))
    alike = float(np.exp(-np.square(state_vector(here) - state_vector(there)).sum()))
    assert weights(evidence_of(there), here)["e"] == pytest.approx(alike * match, rel=1e-5)


def test_equals_at_the_border_all_count() -> None:
    records = [experience(f"e{number}", "wide", "wide-loads") for number in range(NEAREST + 50)]
    assert len(evidence_of(*records).attended(state())) == NEAREST + 50


def test_strangers_do_not_push_out_what_was_measured_on_the_task_at_hand() -> None:
    """The strangers' paths are alike, so that each of them weighs more than a step of this task's first."""
    path = {"prefix": ("reuse",), "prefix_outcomes": (0.1,)}
    strangers = [experience(f"s{number}", "wide", "wide-loads", task="another", **path) for number in range(NEAREST)]
    nearer = experience("nearer", "wide", "wide-loads", task="another", **path)
    own = [experience(f"own {number}", "wide", "wide-loads", None) for number in range(3)]
    farther = experience("farther", "wide", "wide-loads", task="another")
    found = weights(evidence_of(farther, *own, *strangers, nearer), state(**path))
    assert len(found) == NEAREST + 1 + len(own)
    assert {one.id for one in own} < found.keys()
    assert "farther" not in found


def test_a_kept_answer_is_not_given_after_the_memory_changed() -> None:
    memory, here = index(experience("a", "wide", "wide-loads", 0.9)), state()
    before = score_directions(here, memory), retrieve_strategies(here, "wide", memory)
    assert posterior(here, memory) is posterior(here.model_copy(), memory)
    memory.evidence.add(experience("a", "wide", "wide-loads", None))
    after = score_directions(here, memory), retrieve_strategies(here, "wide", memory)
    assert after[0] != before[0]
    assert after[1] != before[1]
    fresh = index(experience("a", "wide", "wide-loads", None))
    assert after == (score_directions(here, fresh), retrieve_strategies(here, "wide", fresh))
    memory.strategies["wide-loads"] = memory.strategies["wide-loads"].model_copy(update={"prior": 0.9})
    assert retrieve_strategies(here, "wide", memory) != after[1]


class Refreshed(MemoryStore):
    """A store that another thread refreshes between any two looks at it: its index alternates between two that hold the
    same in another order, so that codes and positions of one say something else in the other."""

    def __init__(self, *indexes: MemoryIndex) -> None:
        self._turns = itertools.cycle(indexes)

    def __getattribute__(self, name: str) -> object:
        if name == "_index":
            return next(self._turns)
        return super().__getattribute__(name)


@pytest.mark.parametrize("mode", ["full", "no-hierarchy", "no-local", "random"])
def test_a_refresh_in_the_midst_of_a_question_does_not_change_the_answer(mode: str) -> None:
    records = random_records(40, random.Random(7))
    one, other = index(*records), index(*records[::-1])
    here = state(mode=mode, prefix=("wide",), prefix_outcomes=(0.1,), steps_left=3)
    for _ in range(2):
        store = Refreshed(one, other)
        assert score_directions(here, store) == score_directions(here, one)
        assert masked_directions(here, store) == {}
        assert retrieve_strategies(here, "wide", store) == retrieve_strategies(here, "wide", one)
        if mode == "full":
            assert posterior(here, store).expected.tolist() == posterior(here, one).expected.tolist()
            assert explain(here, store).directions == score_directions(here, one)
        one, other = other, one


def test_what_happened_so_far_tells_states_apart() -> None:
    def likeness(**changes: object) -> float:
        path = {"prefix": ("wide", "reuse"), "prefix_outcomes": (0.5, 0.5), "steps_left": 3}
        difference = state_vector(state(**path)) - state_vector(state(**{**path, **changes}))
        return float(np.exp(-np.square(difference).sum()))

    assert likeness() == 1.0
    assert likeness(prefix=("reuse", "wide")) == 1.0, "the directions themselves are compared by the path"
    for changes in (
        {"prefix": ("wide",), "prefix_outcomes": (0.5,)},
        {"prefix_outcomes": (-0.1, 0.5)},
        {"prefix_outcomes": (0.5, -0.1)},
        {"steps_left": 6},
    ):
        assert 0.7 < likeness(**changes) < 1.0
    unknown = experience("a", "wide", "wide-loads", prefix=("wide",), steps_left=None)
    assert np.array_equal(state_vector(unknown), state_vector(state(prefix=("wide",), steps_left=3)))
