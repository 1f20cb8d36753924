"""What a drawing of the Hierarchical Transition Graph shows: the records, with what was measured of each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import Field

from htam_agent.memory.index import share_of
from htam_agent.memory.model import START, Experience, Transition
from htam_agent.words import Backend, Record

if TYPE_CHECKING:
    from htam_agent.memory.store import MemoryStore


UNDESCRIBED = 2.0
"""Observations that a pair without a description starts with."""


class Measured(Record):
    """Steps and the mean share of the gap that they closed; `share` is null where there are none."""

    steps: int = 0
    share: float | None = None


class DirectionFacts(Record):
    id: str
    title: str
    measured: Measured


class StrategyFacts(Record):
    id: str
    direction: str
    backend: Backend
    measured: Measured


class TransitionFacts(Record):
    """`prior` is null for a pair that was taken and that nobody described. `expected` is what the edge is drawn by: the
    prior and the measured shares, averaged with the prior's pseudo-counts (UNDESCRIBED of a share of 0 without one), so
    that one lucky step does not make the strongest edge."""

    source: str
    target: str
    prior: float | None
    measured: Measured
    expected: float


class GraphFacts(Record):
    """A graph with its measurements. `backend` and `device` say what was left out: strategies of other backends, and
    steps on other devices."""

    backend: Backend | None = None
    device: str | None = None
    experiences: int = 0
    directions: list[DirectionFacts] = Field(default_factory=list)
    strategies: list[StrategyFacts] = Field(default_factory=list)
    transitions: list[TransitionFacts] = Field(default_factory=list)


def graph_facts(store: MemoryStore, backend: Backend | None = None, device: str | None = None) -> GraphFacts:
    """The facts of a memory; `device` is a device's name or an architecture."""
    steps = [
        record
        for record in store.experiences
        if backend in (None, record.device.backend) and device in (None, record.device.name, record.device.architecture)
    ]
    by_edge: dict[tuple[str, str], list[Experience]] = {}
    for record in steps:
        source = record.prefix[-1] if record.prefix else START
        by_edge.setdefault((source, record.direction), []).append(record)
    described = {(edge.source, edge.target): edge for edge in store.transitions.values()}
    return GraphFacts(
        backend=backend,
        device=device,
        experiences=len(steps),
        directions=[
            DirectionFacts(id=name, title=one.title, measured=_measured(r for r in steps if r.direction == name))
            for name, one in sorted(store.directions.items())
        ],
        strategies=[
            StrategyFacts(
                id=name,
                direction=one.direction,
                backend=one.backend,
                measured=_measured(r for r in steps if r.strategy == name),
            )
            for name, one in sorted(store.strategies.items())
            if backend in (None, one.backend)
        ],
        transitions=[
            _transition(pair, described.get(pair), _measured(by_edge.get(pair, [])))
            for pair in sorted(described.keys() | by_edge.keys())
        ],
    )


def _transition(pair: tuple[str, str], described: Transition | None, measured: Measured) -> TransitionFacts:
    prior, counts = (described.prior, described.pseudo_counts) if described else (0.0, UNDESCRIBED)
    total = counts * prior + measured.steps * (measured.share or 0.0)
    return TransitionFacts(
        source=pair[0],
        target=pair[1],
        prior=described.prior if described else None,
        measured=measured,
        expected=total / (counts + measured.steps),
    )


def _measured(records: Iterable[Experience]) -> Measured:
    shares = [share_of(record) for record in records]
    return Measured(steps=len(shares), share=math.fsum(shares) / len(shares) if shares else None)
