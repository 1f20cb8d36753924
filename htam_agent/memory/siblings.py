"""What the strategies of a direction say of each other: the direction's part in what they measured.

A direction that disappoints with two strategies will likely disappoint with the third. With shares that spread s round
a strategy's expectation, strategies that differ from their prior by s^2 / PRIOR_COUNTS (variance) within a direction,
and directions that differ by s^2 / DIRECTION_COUNTS, the direction's part as one strategy k learns it from its siblings
k' is the posterior mean

    shift_k = sum e_k' (m_k' - prior_k') / (DIRECTION_COUNTS + sum e_k'),   e = PRIOR_COUNTS W / (PRIOR_COUNTS + W)

with the mean share m and the weight W of each sibling's experiences: a hundred steps of one sibling say no more of the
direction than PRIOR_COUNTS, for they may be that sibling's own merit. k itself is left out, since its own experiences
count for it already. Siblings that are used up or belong to another backend take part: so what was measured on one
backend reaches another at the level of the direction, and never as the record of a strategy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.evidence import DIRECTION, STRATEGY, Attended
from htam_agent.memory.guard import PRIOR_COUNTS, numbered, priors_of, sums
from htam_agent.memory.index import Memory
from htam_agent.memory.model import Strategy

DIRECTION_COUNTS = 4.0
"""Directions differ by less than the strategies within one."""


def shifts_of(
    attended: Attended,
    weights: NDArray[np.float64],
    column: NDArray[np.intp],
    strategies: Sequence[Strategy],
    memory: Memory,
) -> NDArray[np.float64]:
    """The shift of each strategy [k]; `weights` and `column` (its place, or -1) belong to the experiences [n]."""
    shifts = np.zeros(len(strategies))
    if not len(attended):
        return shifts
    evidence, codes = memory.evidence, attended.codes
    # A strategy that is used up and one on offer are two cells: only the latter has a place to be left out of.
    cell = numbered(numbered(codes[DIRECTION], codes[STRATEGY]), column)
    _, first = np.unique(cell, return_index=True)
    direction = codes[DIRECTION][first]
    counts = sums(cell, weights)
    surprise = sums(cell, weights * attended.shares) / counts
    surprise -= priors_of(codes[STRATEGY][first], evidence, memory.strategies)
    worth = PRIOR_COUNTS * counts / (PRIOR_COUNTS + counts)
    heard, said = sums(direction, worth, evidence.codes), sums(direction, worth * surprise, evidence.codes)
    own_worth, own_said = np.zeros(len(strategies)), np.zeros(len(strategies))
    placed = column[first] >= 0
    own_worth[column[first][placed]] = worth[placed]
    own_said[column[first][placed]] = (worth * surprise)[placed]
    owner = np.array([evidence.code(strategy.direction) for strategy in strategies], dtype=np.intp)
    known = owner >= 0
    shifts[known] = (said[owner[known]] - own_said[known]) / (DIRECTION_COUNTS + heard[owner[known]] - own_worth[known])
    return shifts
