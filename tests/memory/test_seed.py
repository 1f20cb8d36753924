"""The shipped seed: complete, consistent, and a graph that can be walked."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from htam_agent.errors import StoreError
from htam_agent.memory.model import START
from htam_agent.memory.seeding import FOLDER, Seed, load_seed
from htam_agent.words import Bottleneck

IDS = {
    "memory-access", "data-reuse", "parallel-mapping", "boundary-handling", "instruction-throughput",
    "operator-fusion", "numerical-formulation", "latency-hiding", "synchronization", "work-scheduling",
    "cache-policy", "occupancy",
}  # fmt: skip


@pytest.fixture(scope="module")
def seed() -> Seed:
    return load_seed()


def test_the_directions_are_complete_and_answer_every_bottleneck(seed: Seed) -> None:
    assert {direction.id for direction in seed.directions} == IDS
    assert len(seed.directions) == len(IDS)
    for direction in seed.directions:
        assert direction.provenance == "seed"
        assert all([direction.title, direction.intent, direction.when])
        assert set(direction.symptoms) == set(get_args(Bottleneck))
        assert all(0 <= fit <= 1 for fit in direction.symptoms.values())
    for bottleneck in get_args(Bottleneck):
        assert max(direction.symptoms[bottleneck] for direction in seed.directions) >= 0.8


def test_transitions_join_known_directions_and_say_when_why_and_at_what_risk(seed: Seed) -> None:
    assert len(seed.transitions) >= 60
    assert len({edge.id for edge in seed.transitions}) == len(seed.transitions)
    for edge in seed.transitions:
        assert edge.source in IDS | {START}
        assert edge.target in IDS - {edge.source}
        assert min(len(edge.when), len(edge.why), len(edge.risk)) > 10
        assert len(edge.basis) > 20, f"{edge.id}: what the prior is argued from"
        assert 0 < edge.prior <= 0.5
    assert len([edge for edge in seed.transitions if edge.source == START]) >= 5


def test_every_direction_is_reached_from_start_and_none_is_a_dead_end(seed: Seed) -> None:
    onward = {name: {e.target for e in seed.transitions if e.source == name} for name in IDS | {START}}
    assert all(onward.values())
    reached, waiting = set(), {START}
    while waiting:
        reached |= waiting
        waiting = {target for name in waiting for target in onward[name]} - reached
    assert reached - {START} == IDS


def test_every_strategy_belongs_to_a_direction_and_directions_serve_both_backends(seed: Seed) -> None:
    assert len({strategy.id for strategy in seed.strategies}) == len(seed.strategies)
    assert {strategy.direction for strategy in seed.strategies} <= IDS
    for backend in ("cpp", "cuda"):
        own = [strategy for strategy in seed.strategies if strategy.backend == backend]
        assert len(own) >= 12
        assert len({strategy.direction for strategy in own}) >= 6


def test_every_strategy_says_where_it_comes_from_and_what_may_go_wrong(seed: Seed) -> None:
    assert len(seed.strategies) >= 40
    for strategy in seed.strategies:
        assert len(strategy.source) > 10, strategy.id
        assert strategy.how
        assert strategy.pitfalls, strategy.id


def test_the_digest_is_of_the_content_not_of_the_order(seed: Seed) -> None:
    turned = Seed(seed.directions[::-1], seed.strategies[::-1], seed.transitions[::-1])
    assert turned.digest == seed.digest
    assert Seed(seed.directions, seed.strategies[1:], seed.transitions).digest != seed.digest


@pytest.mark.parametrize(
    ("text", "named"),
    [("- id: [", "directions.yaml"), ("id: a", "directions.yaml"), ("- {id: a, titel: b}", "titel")],
)
def test_a_broken_seed_file_is_named(tmp_path: Path, text: str, named: str) -> None:
    for path in FOLDER.glob("*.yaml"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "strategies").mkdir()
    (tmp_path / "directions.yaml").write_text(text)
    with pytest.raises(StoreError, match=named) as caught:
        load_seed(tmp_path)
    assert caught.value.code == "memory-seed"
