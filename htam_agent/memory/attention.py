"""Which direction next: a transition-aware score in one unit, with its reason in words.

**The unit** is the expected share of the remaining gap to the floor that a step closes (share.py). Priors, transitions
and measurements are all shares, so that they can be averaged and none has to be weighed against another by hand.

**The formula.** For a direction d in state s after the path p (p1 the nearest step):

    score(d) = (n0 * fit(d) + n1 * promise(d) + sum_j g^(j-1) * n_e * prior_e + sum_i w_i * y_i)
             / (n0 + n1 + sum_j g^(j-1) * n_e + sum_i w_i)   -  damping(d)  +  exploration(d)

- `fit(d)` = SYMPTOM_SHARE x how well d answers the bottleneck (Direction.symptoms), worth n0 = SYMPTOM_COUNTS
  observations. Before anything was profiled the bottleneck is unknown; then it is what d says for `unknown`, or the
  mean of what it says.
- `promise(d)` is the highest prior among d's strategies that may be used now, worth n1 = STRATEGY_COUNTS
  observations: a direction whose strong strategies are in the kernel already has little left to give.
- transitions e = (p_j -> d), each with the prior and the pseudo-counts that its author gave. g = POSITION_DECAY: each
  step further back weighs half, since the kernel at hand was shaped most by the last step. At the first step the
  transitions out of START speak. Where there is no transition, nothing is said, rather than zero.
- experiences i of direction d: y_i the share that the step closed (a failure: minus its cost), w_i = exp(-|state vector
  difference|^2) x kinship of the device (same device 1, same architecture 0.7, same backend 0.4, another backend 0.1) x
  kinship of the path (0.4 for none, 1 for the same); only the 512 strongest count. Pairwise transition statistics are
  thus never stored: they are derived from experiences, and cannot tear. What a strategy showed that cannot be used now
  (tried, already in the kernel, not applicable) says little of what is left in the direction: within the backend it
  counts USED_UP.

It is a posterior mean: without evidence it is the prior, with much evidence the measured mean (shrinkage by counts).

- `damping`: a step of this run that chose d and closed nothing takes DAMPING x g^(j-1) off, j its distance. What just
  failed here fails again more likely than the average over all tasks says.
- `exploration`: a draw from N(0, (SPREAD / sqrt(total counts))^2), as in Thompson sampling: less is known, more is
  tried. The seed decides the draw; at the last step there is none, since nothing can be gained from knowing more.

Directions without an applicable, untried strategy are masked (left out). The score is clipped to [-1, 1].
"""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass, field

import numpy as np

from htam_agent.memory.index import POSITION_DECAY, Memory
from htam_agent.memory.model import START, Direction, Experience, ScoredDirection, SelectionState, Transition
from htam_agent.memory.retrieval import applicable
from htam_agent.memory.share import share_closed

__all__ = ["masked_directions", "score_directions", "share_closed"]

SYMPTOM_SHARE = 0.35
"""Share of the gap expected of a direction that fully answers the bottleneck. With six steps of a third each the gap is
closed to a tenth, which is what good kernels reach."""

SYMPTOM_COUNTS = 2.0
STRATEGY_COUNTS = 2.0
USED_UP = 0.25
DAMPING = 0.3
CLOSED_NOTHING = 0.01
SPREAD = 0.06
"""Standard deviation of one step's share round its expectation; less than real, for six steps are a short budget."""


def score_directions(state: SelectionState, memory: Memory) -> list[ScoredDirection]:
    """The directions that can be taken, best first, with `why` in words. Empty when none has a strategy left.

    Deterministic for a state (its `seed` included) and a set of records, in whatever order they were stored. Ties go by
    id.
    """
    offered = _offered(state, memory)
    experiences = _experiences(state, memory, {name for names in offered.values() for name in names})
    scored = [
        _Terms(
            state, memory.directions[name], memory, experiences.get(name, []), _promise(offered[name], memory)
        ).scored()
        for name in offered
        if name in memory.directions
    ]
    return sorted(scored, key=lambda each: (-each.score, each.direction))


def masked_directions(state: SelectionState, memory: Memory) -> dict[str, str]:
    """The directions that cannot be taken, each with what stands against one of its strategies, in words."""
    offered = _offered(state, memory)
    reasons: dict[str, str] = {}
    for name in memory.directions:
        if name in offered:
            continue
        own = [strategy for strategy in memory.strategies.values() if strategy.direction == name]
        near = next((strategy for strategy in own if strategy.backend == state.backend), None)
        reasons[name] = f"{near.id}: {applicable(near, state)}" if near else f"no strategy for {state.backend}"
    return reasons


def _offered(state: SelectionState, memory: Memory) -> dict[str, list[str]]:
    """Direction -> ids of its strategies that may be used now."""
    offered: dict[str, list[str]] = {}
    for strategy in memory.strategies.values():
        if applicable(strategy, state) is None:
            offered.setdefault(strategy.direction, []).append(strategy.id)
    return offered


def _promise(names: list[str], memory: Memory) -> float:
    """The highest prior of these strategies."""
    return max(memory.strategies[name].prior for name in names)


@dataclass(frozen=True)
class _Weighted:
    """One experience with its weight in this state."""

    weight: float
    share: float
    record: Experience


def _experiences(state: SelectionState, memory: Memory, usable: set[str]) -> dict[str, list[_Weighted]]:
    """Direction -> its experiences that count here."""
    evidence = memory.evidence
    weights = evidence.weights(state)
    found: dict[str, list[_Weighted]] = {}
    for position in np.flatnonzero(weights).tolist():
        record, weight = evidence.records[position], float(weights[position])
        if record.device.backend == state.backend and record.strategy not in usable:
            weight *= USED_UP
        found.setdefault(record.direction, []).append(_Weighted(weight, evidence.shares[position], record))
    return found


@dataclass
class _Terms:
    """The terms of one direction's score."""

    state: SelectionState
    direction: Direction
    memory: Memory
    experiences: list[_Weighted]
    promise: float
    transitions: list[tuple[float, Transition]] = field(init=False)

    def __post_init__(self) -> None:
        path = self.state.prefix[::-1] or (START,)
        edges = [self.memory.transitions.get(f"{source}->{self.direction.id}") for source in path]
        self.transitions = [(POSITION_DECAY**j, edge) for j, edge in enumerate(edges) if edge is not None]

    def scored(self) -> ScoredDirection:
        mean, counts = self._posterior()
        damping, exploration = self._damping(), self._exploration(counts)
        score = max(-1.0, min(1.0, mean - damping + exploration))
        parts = [f"{score:.2f} of the remaining gap expected", self._symptom_words()]
        parts.append(f"{self.promise:.2f} by its most promising strategy")
        if self.transitions:
            parts.append(self._transition_words())
        if self.experiences:
            parts.append(self._experience_words())
        if damping:
            parts.append(f"{damping:.2f} off, since it closed nothing earlier in this run")
        if exploration:
            parts.append(f"exploration {exploration:+.2f}")
        return ScoredDirection(direction=self.direction.id, score=score, why="; ".join(parts) + ".")

    def _posterior(self) -> tuple[float, float]:
        """Mean and total counts of the kinds of knowledge. fsum is exact, so that order does not matter."""
        terms = [(SYMPTOM_COUNTS, SYMPTOM_SHARE * self._fit()), (STRATEGY_COUNTS, self.promise)]
        terms += [(weight * edge.pseudo_counts, edge.prior) for weight, edge in self.transitions]
        terms += [(each.weight, each.share) for each in self.experiences]
        counts = math.fsum(count for count, _ in terms)
        return math.fsum(count * share for count, share in terms) / counts, counts

    def _fit(self) -> float:
        symptoms = self.direction.symptoms
        if self.state.bottleneck in symptoms or not symptoms:
            return symptoms.get(self.state.bottleneck, 0.0)
        return math.fsum(symptoms.values()) / len(symptoms) if self.state.bottleneck == "unknown" else 0.0

    def _damping(self) -> float:
        steps = zip(self.state.prefix[::-1], self.state.prefix_outcomes[::-1], strict=False)
        vain = [j for j, (name, share) in enumerate(steps) if name == self.direction.id and share <= CLOSED_NOTHING]
        return math.fsum(DAMPING * POSITION_DECAY**j for j in vain)

    def _exploration(self, counts: float) -> float:
        if self.state.steps_left <= 1:
            return 0.0
        key = "\0".join([str(self.state.seed), self.direction.id, *self.state.prefix])
        draws = random.Random(hashlib.blake2b(key.encode(), digest_size=8).digest())
        return draws.gauss(0.0, SPREAD / math.sqrt(counts))

    def _symptom_words(self) -> str:
        expected = f"{SYMPTOM_SHARE * self._fit():.2f} by its fit"
        if self.state.bottleneck == "unknown":
            return f"{expected} (nothing profiled yet)"
        return f"{expected} to a {self.state.bottleneck} bottleneck"

    def _transition_words(self) -> str:
        _, edge = self.transitions[0]
        begin = "to begin with" if edge.source == START else f"after {edge.source}"
        return f"{edge.prior:.2f} {begin}: {edge.why.rstrip('.')} (risk: {edge.risk.rstrip('.')})"

    def _experience_words(self) -> str:
        counts = math.fsum(each.weight for each in self.experiences)
        mean = math.fsum(each.weight * each.share for each in self.experiences) / counts
        record = max(self.experiences, key=lambda each: (each.weight, each.record.id)).record
        outcome: str = record.verdict
        if record.verdict == "correct" and record.time_after_ms:
            outcome = f"{record.time_before_ms / record.time_after_ms:.2f}x"
        return (
            f"measured {mean:+.2f} on average in {len(self.experiences)} steps like this ({counts:.1f} counts), "
            f"nearest {record.strategy} on {record.task} ({record.device.name}): {outcome}"
        )
