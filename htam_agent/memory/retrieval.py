"""Local retrieval: the strategies of one direction that apply here, the most promising first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.draws import uniform
from htam_agent.memory.guard import PRIOR_COUNTS
from htam_agent.memory.index import Memory
from htam_agent.memory.model import ScoredStrategy, SelectionState, Strategy
from htam_agent.memory.modes import draws_strategies, is_flat
from htam_agent.memory.posterior import Posterior, posterior, usable
from htam_agent.memory.preconditions import applicable, preconditions_of

__all__ = ["applicable", "retrieve_strategies"]

SPECIFIC_SHARE = 0.03
"""Added for each precondition that holds, for at most three: advice made for this case beats general advice."""

TEXT_SHARE = 0.1
"""Times the likeness of the strategy's text to the state's words."""


def retrieve_strategies(state: SelectionState, direction: str, memory: Memory, limit: int = 5) -> list[ScoredStrategy]:
    """The at most `limit` best strategies of `direction` that apply and were not tried, best first.

    The score is the expected share of the remaining gap, as for directions (posterior.py): the strategy's own prior
    plus how well the advice fits (specific preconditions that hold, and likeness of words), worth PRIOR_COUNTS
    observations, averaged with the measured shares of this strategy, each weighted by the similarity of its state, and
    the same draw of exploration that the direction was chosen with. A strategy that was never measured is therefore
    ranked by fit, and one that was measured often by its record. Ties go by id.

    The state's memory mode decides what is ranked and how (modes.py): in `no-hierarchy` and `none` all directions'
    strategies stand in one list, and `direction` is not looked at; in `no-local`, `random` and `none` the order is a
    seeded draw, and the scores are 0.
    """
    memory = memory.index
    if draws_strategies(state.mode):
        every = is_flat(state.mode)
        return _drawn(state, [each for each in usable(state, memory) if every or each.direction == direction])[:limit]
    known = posterior(state, memory)
    chosen = range(len(known.strategies)) if is_flat(state.mode) else known.places.get(direction, [])
    return _ranked(state, known, list(chosen), memory)[:limit]


def shuffled(state: SelectionState, strategies: Sequence[Strategy]) -> list[Strategy]:
    """The strategies in the order of a seeded, uniform draw."""
    draws = uniform(state, [f"order {strategy.id}" for strategy in strategies])
    return [strategies[place] for place in np.argsort(draws, kind="stable").tolist()]


def _drawn(state: SelectionState, strategies: list[Strategy]) -> list[ScoredStrategy]:
    why = f"Drawn at random from {len(strategies)} (memory mode {state.mode})."
    return [ScoredStrategy(strategy=strategy, score=0.0, why=why) for strategy in shuffled(state, strategies)]


def _ranked(state: SelectionState, known: Posterior, chosen: list[int], memory: Memory) -> list[ScoredStrategy]:
    strategies = [known.strategies[place] for place in chosen]
    holding = [preconditions_of(strategy) for strategy in strategies]
    bonus = np.zeros(len(known.strategies))
    bonus[chosen] = SPECIFIC_SHARE * np.minimum(holding, 3) + TEXT_SHARE * _likeness(state, strategies, memory)
    on_prior = bonus * PRIOR_COUNTS / (PRIOR_COUNTS + known.counts)
    scores = np.clip(known.expected + on_prior + known.explored, -1.0, 1.0)
    order = sorted(range(len(chosen)), key=lambda i: (-scores[chosen[i]], strategies[i].id))
    found: list[ScoredStrategy] = []
    for i in order:
        place, strategy = chosen[i], strategies[i]
        why = _words(known, place, float(scores[place]), float(bonus[place]), holding[i], float(known.explored[place]))
        found.append(ScoredStrategy(strategy=strategy, score=float(scores[place]), why=why))
    return found


def _likeness(state: SelectionState, strategies: Sequence[Strategy], memory: Memory) -> NDArray[np.float64]:
    """Cosine of each strategy's text with the state's words, not below 0."""
    if not strategies:
        return np.zeros(0)
    operators = [name.removeprefix("aten.") for name in state.operators]
    words = [state.features.operator_class, state.features.dtype, state.bottleneck, *operators]
    query = memory.texts.embedded(" ".join(words))
    vectors = np.stack([memory.texts.vectors[strategy.id] for strategy in strategies])
    cosines = np.einsum("ij,j->i", vectors.astype(np.float64), query.astype(np.float64))
    return np.asarray(np.maximum(0.0, cosines), dtype=np.float64)


def _words(known: Posterior, place: int, score: float, bonus: float, holding: int, explored: float) -> str:
    prior, counts, shift = float(known.priors[place]) + bonus, float(known.counts[place]), float(known.shifts[place])
    why = f"{score:.2f} of the remaining gap expected: {prior:.2f} by fit ({holding} preconditions hold)"
    if shift:
        why += f", {shift:+.2f} by what its direction's other strategies did"
    if counts:
        mean = float(known.totals[place]) / counts
        why += f", measured {mean:+.2f} on average in {known.steps[place]} steps like this ({counts:.1f} counts)"
    if explored:
        why += f", exploration {explored:+.2f}"
    return why + "."
