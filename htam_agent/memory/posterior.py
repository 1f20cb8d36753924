"""What is expected of each strategy in a state: its prior, averaged with what was measured in states like it."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.draws import normal
from htam_agent.memory.evidence import BACKEND, STRATEGY, Attended, Evidence
from htam_agent.memory.guard import PRIOR_COUNTS, judged, sums
from htam_agent.memory.index import Memory
from htam_agent.memory.model import SelectionState, Strategy
from htam_agent.memory.modes import is_flat
from htam_agent.memory.preconditions import applicable
from htam_agent.memory.siblings import shifts_of

USED_UP = 0.25
"""What a step with a strategy that cannot be used now (tried, in the kernel already, not applicable) counts for its
direction: it says little of what is left there."""

EXPLORATION_SPREAD = 0.06
"""Standard deviation of one step's share round its expectation, as exploration takes it; less than the real one
(guard.SPREAD), for six steps are a short budget and a wrong step costs one of them."""


@dataclass(frozen=True)
class Posterior:
    """The k strategies that may be used, and the n experiences that count.

    A strategy's expectation is (PRIOR_COUNTS * (prior + shift) + sum of w * y) / (PRIOR_COUNTS + sum of w) over its
    own experiences on this backend, with the weights w of attention, cap and trust, and shares y. The shift is what the
    other strategies of its direction did beyond or below their priors (siblings.py).
    """

    strategies: list[Strategy]
    """By id, [k]."""
    priors: NDArray[np.float64]
    shifts: NDArray[np.float64]
    counts: NDArray[np.float64]
    """Sum of the weights of each strategy's experiences, [k]."""
    totals: NDArray[np.float64]
    """Sum of weight x share, [k]."""
    steps: NDArray[np.intp]
    """Number of each strategy's experiences, [k]."""
    attended: Attended
    column: NDArray[np.intp]
    """Place of each experience's strategy among `strategies`, -1 where it cannot be used here, [n]."""
    weights: NDArray[np.float64]
    """What each experience counts, [n]; times USED_UP where its strategy is of this backend and cannot be used."""
    trust: NDArray[np.float64]
    expected: NDArray[np.float64]
    """Expected share of each strategy, [k]."""
    explored: NDArray[np.float64]
    """What a draw of Thompson sampling adds to each expectation, [k]: N(0, EXPLORATION_SPREAD^2 / counts), so that the
    less is known of a strategy, the likelier it is tried. Zero at the last step, since nothing can be gained from
    knowing more."""
    places: dict[str, list[int]]
    """Direction -> places of its strategies among `strategies`."""


class _Latest(NamedTuple):
    """The last answer of a memory and what it was made from."""

    version: int
    state: SelectionState
    records: list[Strategy]
    answer: Posterior


_latest: WeakKeyDictionary[Evidence, _Latest] = WeakKeyDictionary()


def usable(state: SelectionState, memory: Memory) -> list[Strategy]:
    """The strategies that may be used now, by id."""
    found = [strategy for strategy in list(memory.strategies.values()) if applicable(strategy, state) is None]
    return sorted(found, key=lambda strategy: strategy.id)


def posterior(state: SelectionState, memory: Memory) -> Posterior:
    """What the memory says of the strategies that may be used in this state. The last answer is kept: selection,
    retrieval and coders ask for the same state."""
    memory = memory.index
    evidence, records = memory.evidence, list(memory.strategies.values())
    latest, version = _latest.get(evidence), evidence.version
    if latest is not None and latest.version == version and latest.state == state and _same(latest.records, records):
        return latest.answer
    answer = _posterior(state, memory)
    _latest[evidence] = _Latest(version, state, records, answer)
    return answer


def _same(before: list[Strategy], now: list[Strategy]) -> bool:
    return len(before) == len(now) and all(map(operator.is_, before, now))


def _posterior(state: SelectionState, memory: Memory) -> Posterior:
    strategies, evidence = usable(state, memory), memory.evidence
    attended = evidence.attended(state)
    found = judged(attended, evidence, memory.strategies)
    here = attended.codes[BACKEND] == evidence.code(state.backend)
    place_of = np.full(evidence.codes, -1, dtype=np.intp)
    for place, strategy in enumerate(strategies):
        if (code := evidence.code(strategy.id)) >= 0:
            place_of[code] = place
    column = np.where(here, place_of[attended.codes[STRATEGY]], -1)
    own, size = column >= 0, len(strategies)
    places: dict[str, list[int]] = {}
    for place, strategy in enumerate(strategies):
        places.setdefault(strategy.direction, []).append(place)
    priors = np.array([strategy.prior for strategy in strategies])
    counts = sums(column[own], found.weights[own], size)
    totals = sums(column[own], found.weights[own] * attended.shares[own], size)
    weights = np.where(here & ~own, USED_UP * found.weights, found.weights)
    flat = is_flat(state.mode)
    shifts = np.zeros(size) if flat else shifts_of(attended, weights, column, strategies, memory)
    return Posterior(
        strategies=strategies,
        priors=priors,
        shifts=shifts,
        counts=counts,
        totals=totals,
        steps=np.bincount(column[own], minlength=size),
        attended=attended,
        column=column,
        weights=weights,
        trust=found.trust,
        expected=(PRIOR_COUNTS * (priors + shifts) + totals) / (PRIOR_COUNTS + counts),
        explored=_explored(state, strategies, counts),
        places=places,
    )


def _explored(state: SelectionState, strategies: list[Strategy], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    if state.steps_left <= 1:
        return np.zeros(len(strategies))
    draws = normal(state, [f"strategy {strategy.id}" for strategy in strategies])
    return np.asarray(EXPLORATION_SPREAD * draws / np.sqrt(PRIOR_COUNTS + counts), dtype=np.float64)


def mean_and_counts(weights: NDArray[np.float64], shares: NDArray[np.float64]) -> tuple[float, float]:
    """Weighted mean, and the sum of the weights; 0 and 0 of nothing."""
    counts = math.fsum(weights.tolist())
    return (math.fsum((weights * shares).tolist()) / counts if counts else 0.0), counts
