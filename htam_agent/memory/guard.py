"""The guard against negative transfer: experience that makes the predictions of its neighbours worse loses weight.

What was learned on other tasks helps most of the time, and now and then misleads: in the paper's transfer to
Robust-KBench three of four operators gained from the memory, and Cross Entropy became slower than from a cold start.
The state vectors of two tasks may be alike while one strategy suits only one of them. Two things stand against that.

**Two caps.** The experiences of one strategy that come from one source (a task on a device) count at most SOURCE_COUNTS
for another task, and those of all other sources together at most FOREIGN_COUNTS: steps of one task share its
peculiarities, so that the hundredth repeats what the third said, and however well the mean over all tasks is known, the
task at hand differs from it. Of the task at hand, on this device, each step counts fully. So a few own measurements
outweigh any number of others. The common cap is shared out by trust: sources of trust t_j that count c_j leave the
source i

    min(1, FOREIGN_COUNTS / sum_j c_j min(1, t_j / t_i))

of its weight, so that those whose word is doubted take little of it from one that is believed, however many they are,
while many that are all doubted count no more together than one cap, times their trust.

**Trust.** Every source is asked how well it predicts what others measured (leave one source out). For a strategy with
the prior p, n0 = PRIOR_COUNTS, and a source whose experiences count W (after its own cap) with the mean share m, its
word is the posterior mean q = p + W / (n0 + W) * (m - p). Where another source, or the task itself, measured y,
including the word changed the squared error of the prediction by

    gain = (y - p)^2 - (y - q)^2

and gain / (2 * SPREAD^2) is the log-likelihood ratio of "the source informs this neighbour" against "the prior alone
does", when outcomes spread round their expectation with SPREAD. A source's trust is

    trust = min(1, exp(L_own + min(0, L_others))),   L = min(neighbours, LIMIT) * mean gain / (2 * SPREAD^2)

with the mean over the source's strategies and their neighbours, each neighbour weighed by how much it counts in the
state at hand. Own measurements may clear a source that the others contradict; others never outvote own measurements,
however many agree, since that is how the Cross Entropy case comes about. The limits keep many small
disagreements, which chance alone produces, from adding up to a verdict. Without neighbours trust is 1.

Everything is computed from the sums that the state's attention selects (at most some hundred), in closed form:
nothing is stored, so nothing has to be kept up to date or rebuilt. That the trust follows from outcomes has a price: an
outcome raised far above its neighbours' takes trust from its own source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.evidence import DEVICE, STRATEGY, TASK, Attended, Evidence
from htam_agent.memory.model import Strategy

PRIOR_COUNTS = 2.0
"""Observations that a strategy's prior is worth."""

UNKNOWN_PRIOR = 0.2
"""Of a strategy that experiences name and the memory no longer holds: the default of Strategy.prior."""

SPREAD = 0.35
"""Standard deviation of what one strategy closes in alike states: it fails, or closes a half."""

FOREIGN_COUNTS = 3.0
"""All other sources together, of one strategy. Tasks alike differ by 0.2 (standard deviation) in what it closes: were
the mean over all tasks known exactly, it would say as much of one task as (SPREAD / 0.2)^2 = 3 of its own steps."""

SOURCE_COUNTS = 1.5
"""One other source, of one strategy. It and the task at hand both differ from the mean: SPREAD^2 / (2 * 0.2^2)."""

ROUNDING = 1e-9
"""A weight below this is what a subtraction left over."""

OWN_LIMIT = 4.0
OTHERS_LIMIT = 2.0
"""How many neighbours speak at most: own measurements, and other sources."""


@dataclass(frozen=True)
class Judged:
    """What each of the n attended experiences counts after cap and trust, and its source's trust, both [n]."""

    weights: NDArray[np.float64]
    trust: NDArray[np.float64]


@dataclass(frozen=True)
class _Cells:
    """Sums over the experiences of one source and strategy: arrays [cells]."""

    source: NDArray[np.intp]
    strategy: NDArray[np.intp]
    own: NDArray[np.bool_]
    steps: NDArray[np.float64]
    counts: NDArray[np.float64]
    """Weight after the cap of one source."""
    surprise: NDArray[np.float64]
    """Mean share minus the strategy's prior."""


def judged(attended: Attended, evidence: Evidence, strategies: Mapping[str, Strategy]) -> Judged:
    """Weights and trust of attended experiences."""
    if not len(attended):
        return Judged(attended.weights, attended.weights)
    sources = numbered(attended.codes[TASK], attended.codes[DEVICE])
    cells, cell, capped = _cells(attended, sources, evidence, strategies)
    by_source = _trust(cells)
    capped = capped * _together(cells, by_source[cells.source])
    trust = by_source[sources]
    trust[attended.own] = 1.0
    return Judged(attended.weights * capped[cell] * trust, trust)


def _cells(
    attended: Attended, sources: NDArray[np.intp], evidence: Evidence, strategies: Mapping[str, Strategy]
) -> tuple[_Cells, NDArray[np.intp], NDArray[np.float64]]:
    """The cells, the cell of each experience [n], and what the cap of one source leaves of it, 0 to 1 [cells]."""
    codes = attended.codes[STRATEGY]
    strategy = numbered(codes, codes)
    _, named = np.unique(strategy, return_index=True)
    prior = priors_of(codes[named], evidence, strategies)
    cell = numbered(sources, strategy)
    counts = sums(cell, attended.weights)
    _, first = np.unique(cell, return_index=True)
    own = attended.own[first]
    capped = np.where(own, 1.0, np.minimum(1.0, SOURCE_COUNTS / counts))
    cells = _Cells(
        source=sources[first],
        strategy=strategy[first],
        own=own,
        steps=np.bincount(cell).astype(np.float64),
        counts=counts * capped,
        surprise=sums(cell, attended.weights * attended.shares) / counts - prior[strategy[first]],
    )
    return cells, cell, capped


def _together(cells: _Cells, trust: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the cap of all foreign sources together leaves of each cell's weight, 0 to 1 [cells]; `trust` [cells]."""
    order = np.lexsort((-trust, cells.strategy))
    strategy, trust = cells.strategy[order], trust[order]
    counts = np.where(cells.own, 0.0, cells.counts)[order]
    begin = np.searchsorted(strategy, strategy)
    # Of a cell's strategy: what sources trusted at least as much count, and what the less trusted do, by their trust.
    surer = _since(counts, begin)
    doubted = sums(strategy, counts * trust)[strategy] - _since(counts * trust, begin)
    rivals = np.empty_like(counts)
    rivals[order] = surer + np.maximum(0.0, doubted) / trust
    capped = np.divide(FOREIGN_COUNTS, rivals, out=np.ones_like(rivals), where=rivals > FOREIGN_COUNTS)
    return np.where(cells.own, 1.0, capped)


def _since(values: NDArray[np.float64], begin: NDArray[np.intp]) -> NDArray[np.float64]:
    """For each place the sum of the values from `begin` to it, itself included."""
    summed = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(summed[1:] - summed[begin], dtype=np.float64)


def priors_of(codes: NDArray[np.int32], evidence: Evidence, strategies: Mapping[str, Strategy]) -> NDArray[np.float64]:
    """Prior of the strategy of each code."""
    known = [strategies.get(evidence.text(code)) for code in codes.tolist()]
    return np.array([UNKNOWN_PRIOR if one is None else one.prior for one in known], dtype=np.float64)


def _trust(cells: _Cells) -> NDArray[np.float64]:
    """Trust of each source, 0 to 1 [sources]."""
    is_own = cells.own.astype(np.float64)
    own = _ratio(cells, is_own, cells.steps, OWN_LIMIT)
    others = _ratio(cells, 1.0 - is_own, np.ones_like(is_own), OTHERS_LIMIT)
    return np.asarray(np.exp(np.minimum(0.0, own + np.minimum(0.0, others))), dtype=np.float64)


def _ratio(
    cells: _Cells, speaks: NDArray[np.float64], number: NDArray[np.float64], limit: float
) -> NDArray[np.float64]:
    """Log-likelihood ratio [sources] by the neighbours whose `speaks` is 1; each cell is `number` of them."""
    word = cells.counts / (PRIOR_COUNTS + cells.counts) * cells.surprise
    weight, total = speaks * cells.counts, speaks * cells.counts * cells.surprise
    # A source has one cell for each strategy: all cells of the strategy but this one are its neighbours.
    near, far = _of_strategy(cells, weight) - weight, _of_strategy(cells, total) - total
    many = _of_strategy(cells, speaks * number) - speaks * number
    gains = sums(cells.source, 2.0 * word * far - word**2 * near)
    weights, neighbours = sums(cells.source, near), sums(cells.source, many)
    mean = np.divide(gains, weights, out=np.zeros_like(gains), where=weights > ROUNDING)
    return np.asarray(np.minimum(neighbours, limit) * mean / (2.0 * SPREAD**2), dtype=np.float64)


def _of_strategy(cells: _Cells, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each cell the sum of `values` over all cells of its strategy."""
    found: NDArray[np.float64] = sums(cells.strategy, values)[cells.strategy]
    return found


def sums(number: NDArray[np.intp], values: NDArray[np.float64], size: int = 0) -> NDArray[np.float64]:
    """Sum of the values of each number, [at least size]."""
    return np.asarray(np.bincount(number, values, minlength=size), dtype=np.float64)


def numbered(first: NDArray[np.integer], second: NDArray[np.integer]) -> NDArray[np.intp]:
    """A number from 0 for each different pair, in the order in which they occur: sums over them are then taken in an
    order that does not depend on the codes, which follow the order of storing."""
    pairs = (first.astype(np.int64) << 32) | (second.astype(np.int64) & 0xFFFFFFFF)
    _, start, number = np.unique(pairs, return_index=True, return_inverse=True)
    order = np.empty(len(start), dtype=np.intp)
    order[np.argsort(start)] = np.arange(len(start))
    return np.asarray(order[number], dtype=np.intp)
