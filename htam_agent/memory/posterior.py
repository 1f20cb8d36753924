"""What is expected of each strategy in a state: its prior, averaged with what was measured in states like it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.draws import normal
from htam_agent.memory.evidence import BACKEND, STRATEGY, Attended
from htam_agent.memory.guard import PRIOR_COUNTS, judged, sums
from htam_agent.memory.index import Memory
from htam_agent.memory.model import SelectionState, Strategy
from htam_agent.memory.preconditions import applicable

USED_UP = 0.25
"""What a step with a strategy that cannot be used now (tried, in the kernel already, not applicable) counts for its
direction: it says little of what is left there."""

EXPLORATION_SPREAD = 0.06
"""Standard deviation of one step's share round its expectation, as exploration takes it; less than the real one
(guard.SPREAD), for six steps are a short budget and a wrong step costs one of them."""


@dataclass(frozen=True)
class Posterior:
    """The k strategies that may be used, and the n experiences that count.

    A strategy's expectation is (PRIOR_COUNTS * prior + sum of w * y) / (PRIOR_COUNTS + sum of w) over its own
    experiences on this backend, with the weights w of attention, cap and trust, and shares y.
    """

    strategies: list[Strategy]
    """By id, [k]."""
    priors: NDArray[np.float64]
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
    places: dict[str, list[int]] = field(default_factory=dict)
    """Direction -> places of its strategies among `strategies`."""

    def expected(self, bonus: NDArray[np.float64] | float = 0.0) -> NDArray[np.float64]:
        """Expected share of each strategy [k], with `bonus` on its prior."""
        return np.asarray(
            (PRIOR_COUNTS * (self.priors + bonus) + self.totals) / (PRIOR_COUNTS + self.counts), dtype=np.float64
        )

    def explored(self, state: SelectionState) -> NDArray[np.float64]:
        """What a draw of Thompson sampling adds to each expectation [k]: N(0, EXPLORATION_SPREAD^2 / counts), so that
        the less is known of a strategy, the likelier it is tried. Zero at the last step, since nothing can be gained
        from knowing more."""
        if state.steps_left <= 1:
            return np.zeros(len(self.strategies))
        draws = np.array([normal(state, f"strategy {one.id}") for one in self.strategies])
        return np.asarray(EXPLORATION_SPREAD * draws / np.sqrt(PRIOR_COUNTS + self.counts), dtype=np.float64)


def usable(state: SelectionState, memory: Memory) -> list[Strategy]:
    """The strategies that may be used now, by id."""
    found = [strategy for strategy in memory.strategies.values() if applicable(strategy, state) is None]
    return sorted(found, key=lambda strategy: strategy.id)


def posterior(state: SelectionState, memory: Memory) -> Posterior:
    """What the memory says of the strategies that may be used in this state."""
    strategies, evidence = usable(state, memory), memory.evidence
    attended = evidence.attended(state)
    found = judged(attended, evidence, memory.strategies)
    number = {evidence.code(strategy.id): place for place, strategy in enumerate(strategies)}
    here = attended.codes[:, BACKEND] == evidence.code(state.backend)
    used = attended.codes[:, STRATEGY].tolist()
    column = np.array([number.get(code, -1) for code in used], dtype=np.intp)
    column[~here] = -1
    own, size = column >= 0, len(strategies)
    places: dict[str, list[int]] = {}
    for place, strategy in enumerate(strategies):
        places.setdefault(strategy.direction, []).append(place)
    return Posterior(
        strategies=strategies,
        priors=np.array([strategy.prior for strategy in strategies]),
        counts=sums(column[own], found.weights[own], size),
        totals=sums(column[own], found.weights[own] * attended.shares[own], size),
        steps=np.bincount(column[own], minlength=size),
        attended=attended,
        column=column,
        weights=np.where(here & ~own, USED_UP * found.weights, found.weights),
        trust=found.trust,
        places=places,
    )


def mean_and_counts(weights: NDArray[np.float64], shares: NDArray[np.float64]) -> tuple[float, float]:
    """Weighted mean, and the sum of the weights; 0 and 0 of nothing."""
    counts = math.fsum(weights.tolist())
    return (math.fsum((weights * shares).tolist()) / counts if counts else 0.0), counts
