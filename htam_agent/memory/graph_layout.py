"""Where the nodes of a drawn graph lie: the start in the middle, the directions round it, strategies as satellites.

All lengths are inches, x to the right and y upwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from htam_agent.memory.graph_facts import GraphFacts
from htam_agent.memory.model import START

WIDTH, HEIGHT = 16.0, 11.0
CENTRE = (5.75, 5.25)
HALF_WIDTH, HALF_HEIGHT = 4.25, 3.75
"""Of the ellipse that the directions lie on."""

SMALLEST, LARGEST = 0.50, 0.72
"""Radius of a direction that was never used, and of the one that was used most: the smallest still holds its name."""

START_RADIUS = 0.42
SATELLITE_GAP = 0.17
"""From the rim of a direction to its first row of satellites, from there to the next, and between neighbours."""

FAN = math.radians(160)
"""The arc that satellites are spread over, on the side that looks away from the middle."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """Centres and radii of the directions (and the start), and the places of the strategies, by id."""

    centres: Mapping[str, Point]
    radii: Mapping[str, float]
    satellites: Mapping[str, Point]


def laid_out(facts: GraphFacts) -> Layout:
    """The same facts give the same layout."""
    order = _ordered(facts)
    centres: dict[str, Point] = {START: CENTRE}
    for place, name in enumerate(order):
        angle = math.pi / 2 - 2 * math.pi * (place + 0.5) / len(order)
        centres[name] = (CENTRE[0] + HALF_WIDTH * math.cos(angle), CENTRE[1] + HALF_HEIGHT * math.sin(angle))
    most = max((one.measured.steps for one in facts.directions), default=0)
    radii = {START: START_RADIUS}
    for one in facts.directions:
        # Area, not radius, grows with use: twice as often looks twice as large.
        radii[one.id] = SMALLEST + (LARGEST - SMALLEST) * math.sqrt(one.measured.steps / most if most else 0.0)
    satellites: dict[str, Point] = {}
    for name in order:
        own = [one.id for one in facts.strategies if one.direction == name]
        satellites |= _fanned(own, centres[name], radii[name])
    return Layout(centres, radii, satellites)


def _fanned(names: Sequence[str], centre: Point, radius: float) -> dict[str, Point]:
    """Rows of satellites round the outer side of a node, the first row filled first."""
    outward = math.atan2(centre[1] - CENTRE[1], centre[0] - CENTRE[0])
    places: dict[str, Point] = {}
    rest, distance = list(names), radius + SATELLITE_GAP
    while rest:
        room = int(FAN * distance / SATELLITE_GAP) + 1
        row, rest = rest[:room], rest[room:]
        step = SATELLITE_GAP / distance
        for place, name in enumerate(row):
            angle = outward + step * (place - (len(row) - 1) / 2)
            places[name] = (centre[0] + distance * math.cos(angle), centre[1] + distance * math.sin(angle))
        distance += SATELLITE_GAP
    return places


def _ordered(facts: GraphFacts) -> list[str]:
    """The directions in an order that keeps strong transitions short: the best exchange of two is taken, as long as one
    shortens anything."""
    order = [one.id for one in facts.directions]
    pull: dict[frozenset[str], float] = {}
    for edge in facts.transitions:
        if edge.source != edge.target and edge.source in order and edge.target in order:
            pair = frozenset((edge.source, edge.target))
            pull[pair] = pull.get(pair, 0.0) + max(edge.expected, 0.0)
    best = _length(order, pull)
    improved = True
    while improved:
        improved = False
        for i in range(len(order)):
            for j in range(i + 1, len(order)):
                order[i], order[j] = order[j], order[i]
                length = _length(order, pull)
                if length < best - 1e-9:
                    best, improved = length, True
                else:
                    order[i], order[j] = order[j], order[i]
    return order


def _length(order: Sequence[str], pull: Mapping[frozenset[str], float]) -> float:
    places = {name: 2 * math.pi * place / len(order) for place, name in enumerate(order)}
    total = 0.0
    for pair, weight in pull.items():
        first, second = sorted(places[name] for name in pair)
        total += weight * math.sin((second - first) / 2)
    return total
