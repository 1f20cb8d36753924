"""The drawn graph: nothing lies on anything else, and the numbers are those of the records."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from htam_agent.memory.graph_facts import GraphFacts, graph_facts
from htam_agent.memory.graph_layout import HEIGHT, WIDTH, laid_out
from htam_agent.memory.picture import LISTED, PANEL, TAG_DISTANCE
from htam_agent.memory.seeding import load_seed
from htam_agent.memory.store import MemoryStore
from tests.support.memory import SEED, experience


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> GraphFacts:
    """The shipped seed, with one strategy used much."""
    strategies = [one for one in load_seed().strategies if one.backend == "cpp"]
    steps = [experience(f"r:{i}:0:0", one.direction, one.id, i / 30) for i, one in enumerate(strategies)]
    steps += [experience(f"s:{i}:0:0", strategies[0].direction, strategies[0].id, 0.5) for i in range(50)]
    with MemoryStore.open(tmp_path_factory.mktemp("graph") / "memory") as store:
        store.add_experiences(steps)
        return graph_facts(store)


def test_nothing_lies_on_anything_else(facts: GraphFacts) -> None:
    layout = laid_out(facts)
    assert set(layout.satellites) == {one.id for one in facts.strategies}
    circles = [(name, layout.centres[name], layout.radii[name]) for name in layout.centres]
    circles += [(name, place, 0.06) for name, place in layout.satellites.items()]
    for (one, here, radius), (other, there, size) in itertools.combinations(circles, 2):
        assert math.dist(here, there) > radius + size, f"{one} lies on {other}"
    for name, (x, y), radius in circles:
        assert radius <= x <= PANEL - radius, f"{name} lies in the panel"
        assert radius <= y <= HEIGHT - 1.0 - radius, f"{name} lies in the heading"
    assert PANEL < WIDTH
    assert layout.radii["start"] + 0.2 < TAG_DISTANCE
    assert len(facts.transitions) >= LISTED


def test_use_makes_a_direction_larger(facts: GraphFacts) -> None:
    layout = laid_out(facts)
    most = max(facts.directions, key=lambda one: one.measured.steps)
    unused = next(one for one in facts.directions if one.measured.steps == 0)
    assert layout.radii[most.id] > layout.radii[unused.id]


def test_facts_are_means_of_what_was_measured_and_lean_on_the_prior(tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path / "memory", seed=SEED) as store:
        store.add_experiences(
            [
                experience("a:1:0:0", "wide", "wide-loads", 0.5),
                experience("a:2:0:0", "wide", "wide-loads", None, prefix=("wide",)),
                experience("b:1:0:0", "wide", "wide-stores", 0.9),
            ]
        )
        facts = graph_facts(store, "cpp")
        assert [one.id for one in facts.strategies] == ["keep-row", "wide-loads", "wide-stores"]
        edges = {(one.source, one.target): one for one in facts.transitions}
        first, again = edges["start", "wide"], edges["wide", "wide"]
        assert (first.prior, first.measured.steps) == (0.3, 2)
        assert first.measured.share == pytest.approx(0.7)
        assert first.expected == pytest.approx((2 * 0.3 + 2 * 0.7) / 4)
        assert again.prior is None
        assert again.expected == pytest.approx(-0.1 / 3)
        assert graph_facts(store, device="another").experiences == 0
        laid_out(facts)
