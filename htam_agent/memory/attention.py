"""Which direction next: a transition-aware score in one unit, with its terms and its reason in words.

**The unit** is the expected share of the remaining gap to the floor that a step closes (share.py). Priors, transitions
and measurements are all shares, so that they can be averaged and none has to be weighed against another by hand.

**The formula.** For a direction d in state s after the path p (p1 the nearest step):

    score(d) = ( n0 fit(d) + (n1 + W_d) value(d) + sum_j g^(j-1) c_j T(p_j, d) )
             / ( n0        + (n1 + W_d)          + sum_j g^(j-1) c_j           ) - damping(d) + exploration(d)

- `fit(d)` = SYMPTOM_SHARE x how well d answers the bottleneck (Direction.symptoms), worth n0 = SYMPTOM_COUNTS
  observations: the static prior given the state. Before anything was profiled the bottleneck is unknown; then it is
  what d says for `unknown`, or the mean of what it says.
- `value(d)` = t log(mean exp(v_k / t)) over the OFFERED best of d's strategies that may be used now: a soft maximum
  with the temperature t = TEMPERATURE. v_k is the posterior mean of strategy k (posterior.py): its prior, shifted by
  what its siblings did (siblings.py), averaged with its own measured shares, each weighed by attention over states
  (evidence.py) and the guard (guard.py). W_d is the sum of the weights of d's experiences, n1 = STRATEGY_COUNTS. Those
  of strategies that are used up or do not apply count USED_UP; those of another backend have no strategy here at all,
  and reach d through the siblings' shift alone: transfer between backends is at the level of directions.
  Why soft: the highest of several uncertain numbers is on average too high, and repairs take the next ones too. Why the
  logarithm of the mean: it lies between mean and maximum and never falls when a v_k rises, which the average weighted
  by exp(v_k / t) does. Why of a few only: a direction loses nothing by poor strategies that nobody would be offered.
- `T(p_j, d)` is the transition's prior, averaged with the measured shares of the steps that went from p_j to d; the
  prior is worth the pseudo-counts c_j that its author gave. Those means are derived from experiences, pairwise, so that
  they cannot tear and need O(|V|^2) records at most. g = POSITION_DECAY: each step further back weighs half, since the
  kernel at hand was shaped most by the last step. At the first step the transitions out of START speak. A pair that
  nobody described counts what was measured, at most MEASURED_COUNTS; one that nobody described or measured says
  nothing. Evidence moves T, not its weight c_j: a step is counted as evidence once, in value(d).
- `damping`: a step of this run that chose d and closed nothing takes DAMPING x g^(j-1) off, j its distance. What just
  failed here fails again more likely than the average over all tasks says.
- `exploration`: Thompson sampling. One draw for each strategy, v_k + N(0, EXPLORATION_SPREAD^2 / (its counts)), and one
  for the rest of d's terms; what the score gains or loses by them is the term. The less is known, the more is tried,
  and retrieval ranks by the same draws. The seed decides them; at the last step there is none, since nothing can be
  gained from knowing more.

It is a posterior mean: without evidence it is the prior, with much evidence the measured mean (shrinkage by counts).
Directions without an applicable, untried strategy are masked (left out). The score is clipped to [-1, 1].

**numpy, not torch.** It is a few sums over at most some hundred rows, 2 ms in all; importing torch takes seconds, and
the main process never does (start-up stays below 3 s).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.draws import normal, uniform
from htam_agent.memory.evidence import DIRECTION
from htam_agent.memory.explaining import weighed_most, why_direction
from htam_agent.memory.index import Memory
from htam_agent.memory.model import Direction, ScoredDirection, ScoreTerm, SelectionState
from htam_agent.memory.modes import draws_directions, is_flat
from htam_agent.memory.posterior import EXPLORATION_SPREAD, Posterior, posterior, usable
from htam_agent.memory.preconditions import applicable
from htam_agent.memory.retrieval import retrieve_strategies, shuffled
from htam_agent.memory.share import share_closed
from htam_agent.memory.transitions import damping, transition_terms

__all__ = ["masked_directions", "score_directions", "share_closed"]

SYMPTOM_SHARE = 0.35
"""Share of the gap expected of a direction that fully answers the bottleneck. With six steps of a third each the gap is
closed to a tenth, which is what good kernels reach."""

SYMPTOM_COUNTS = 2.0
STRATEGY_COUNTS = 2.0

TEMPERATURE = 0.03
"""Of the soft maximum, in shares: strategies that differ by less than that count as equals. With 0.05 and more, one
excellent strategy among poor siblings no longer comes first on an H200, where its sweep says that it should."""

OFFERED = 5
"""Strategies that a step is offered at most, and that its direction is therefore worth."""


def score_directions(state: SelectionState, memory: Memory) -> list[ScoredDirection]:
    """The directions that can be taken, best first, with terms and `why`. Empty when none has a strategy left.

    Deterministic for a state (its `seed` included) and a set of records, in whatever order they were stored. Ties go by
    id. In the memory modes `random` and `none` the order is a draw and the scores are 0; in `no-hierarchy` a direction
    is worth its best strategy in the flat list, and nothing else.
    """
    memory = memory.index
    if draws_directions(state.mode):
        return _drawn(state, memory)
    known = posterior(state, memory)
    score = _flat if is_flat(state.mode) else _scored
    scored = [
        score(state, memory.directions[name], known, memory) for name in known.places if name in memory.directions
    ]
    return sorted(scored, key=lambda each: (-each.score, each.direction))


def masked_directions(state: SelectionState, memory: Memory) -> dict[str, str]:
    """The directions that cannot be taken, each with what stands against one of its strategies, in words."""
    memory = memory.index
    offered = {strategy.direction for strategy in usable(state, memory)}
    reasons: dict[str, str] = {}
    for name in memory.directions:
        if name in offered:
            continue
        own = [strategy for strategy in memory.strategies.values() if strategy.direction == name]
        near = next((strategy for strategy in own if strategy.backend == state.backend), None)
        reasons[name] = f"{near.id}: {applicable(near, state)}" if near else f"no strategy for {state.backend}"
    return reasons


def soft_maximum(values: Sequence[float]) -> float:
    """t log(mean exp(v / t)) over the OFFERED highest values of v, at least one; between their mean and maximum."""
    best = sorted(values, reverse=True)[:OFFERED]
    mean = math.fsum(math.exp((value - best[0]) / TEMPERATURE) for value in best) / len(best)
    return best[0] + TEMPERATURE * math.log(mean)


def _scored(state: SelectionState, direction: Direction, known: Posterior, memory: Memory) -> ScoredDirection:
    places = known.places[direction.id]
    rows = np.flatnonzero(known.attended.codes[DIRECTION] == memory.evidence.code(direction.id))
    terms = [_fit(state, direction), _value(known, places, rows)]
    terms += transition_terms(state, direction.id, known, rows, memory)
    off = damping(state, direction.id)
    if off:
        terms.append(ScoreTerm(name="damping", share=-off, detail="since it closed nothing earlier in this run"))
    if state.steps_left > 1:
        terms.append(_exploration(state, direction, known, terms))
    return _summed(direction, terms, known, rows, memory)


def _summed(
    direction: Direction,
    terms: list[ScoreTerm],
    known: Posterior,
    rows: NDArray[np.intp],
    memory: Memory,
) -> ScoredDirection:
    """The score of the terms. fsum is exact, so that order does not matter."""
    counts = math.fsum(term.counts for term in terms)
    mean = math.fsum(term.counts * term.share for term in terms) / counts
    added = math.fsum(term.share for term in terms if not term.counts)
    score = max(-1.0, min(1.0, mean + added))
    return ScoredDirection(
        direction=direction.id,
        score=score,
        why=why_direction(score, terms, known, rows, memory),
        terms=tuple(terms),
        experiences=weighed_most(known, rows, memory),
    )


def _fit(state: SelectionState, direction: Direction) -> ScoreTerm:
    symptoms = direction.symptoms
    if state.bottleneck in symptoms or not symptoms:
        fit = symptoms.get(state.bottleneck, 0.0)
    else:
        fit = math.fsum(symptoms.values()) / len(symptoms) if state.bottleneck == "unknown" else 0.0
    known = f"to a {state.bottleneck} bottleneck"
    detail = "by its fit " + ("(nothing profiled yet)" if state.bottleneck == "unknown" else known)
    return ScoreTerm(name="fit", share=SYMPTOM_SHARE * fit, counts=SYMPTOM_COUNTS, detail=detail)


def _value(known: Posterior, places: list[int], rows: NDArray[np.intp]) -> ScoreTerm:
    expected: list[float] = known.expected[places].tolist()
    highest = max(expected)
    best = known.strategies[places[expected.index(highest)]]
    detail = f"by its strategies, of which {best.id} promises most ({highest:.2f})"
    counts = STRATEGY_COUNTS + math.fsum(known.weights[rows].tolist())
    return ScoreTerm(name="strategies", share=soft_maximum(expected), counts=counts, detail=detail)


def _exploration(state: SelectionState, direction: Direction, known: Posterior, terms: list[ScoreTerm]) -> ScoreTerm:
    """What the draws change: those of the strategies in their part of the mean, one of the direction in the rest."""
    places = known.places[direction.id]
    value = next(term for term in terms if term.name == "strategies")
    rest = math.fsum(term.counts for term in terms) - value.counts
    drawn = soft_maximum((known.expected[places] + known.explored[places]).tolist()) - value.share
    other = EXPLORATION_SPREAD * float(normal(state, [f"direction {direction.id}"])[0]) / math.sqrt(rest)
    share = (value.counts * drawn + rest * other) / (value.counts + rest)
    return ScoreTerm(name="exploration", share=share, detail="by a draw of what is not known yet")


def _flat(state: SelectionState, direction: Direction, known: Posterior, memory: Memory) -> ScoredDirection:
    ranked = retrieve_strategies(state, direction.id, memory, limit=len(known.strategies))
    best = next(each for each in ranked if each.strategy.direction == direction.id)
    term = ScoreTerm(name="strategies", share=best.score, counts=1.0, detail=f"by {best.strategy.id} in the flat list")
    rows = np.flatnonzero(known.attended.codes[DIRECTION] == memory.evidence.code(direction.id))
    return ScoredDirection(
        direction=direction.id,
        score=best.score,
        why=f"{best.strategy.id} in the flat list (memory mode no-hierarchy): {best.why}",
        terms=(term,),
        experiences=weighed_most(known, rows, memory),
    )


def _drawn(state: SelectionState, memory: Memory) -> list[ScoredDirection]:
    """A uniform draw among the directions, or, in the mode none, the directions of a uniform draw of strategies."""
    offered = [each for each in usable(state, memory) if each.direction in memory.directions]
    if is_flat(state.mode):
        order = list(dict.fromkeys(each.direction for each in shuffled(state, offered)))
    else:
        names = sorted({each.direction for each in offered})
        draws = uniform(state, [f"direction {name}" for name in names])
        order = [names[place] for place in np.argsort(draws, kind="stable").tolist()]
    detail = f"drawn at random from {len(order)} (memory mode {state.mode})"
    term = ScoreTerm(name="draw", share=0.0, counts=1.0, detail=detail)
    return [ScoredDirection(direction=name, score=0.0, why=f"{detail.capitalize()}.", terms=(term,)) for name in order]
