"""What the path says of a direction: the transitions into it, and what failed on the way."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.evidence import position_weights
from htam_agent.memory.index import Memory
from htam_agent.memory.model import START, ScoreTerm, SelectionState
from htam_agent.memory.modes import uses_path, weighs_position
from htam_agent.memory.posterior import Posterior, mean_and_counts
from htam_agent.memory.share import CLOSED_NOTHING

MEASURED_COUNTS = 2.0
"""What a transition that nobody described counts at most, once it was measured: a described one's default."""

DAMPING = 0.3


def transition_terms(
    state: SelectionState, direction: str, known: Posterior, rows: NDArray[np.intp], memory: Memory
) -> list[ScoreTerm]:
    """One term for each step of the path that has a transition into `direction`, nearest first. `rows` are the attended
    experiences of the direction."""
    if not uses_path(state.mode):
        return []
    path = state.prefix[::-1] or (START,)
    found: list[ScoreTerm] = []
    for source, weight in zip(path, position_weights(len(path), weighs_position(state.mode)).tolist(), strict=True):
        edge = memory.transitions.get(f"{source}->{direction}")
        went = rows[known.attended.nearest[rows] == memory.evidence.code(source)]
        mean, counts = mean_and_counts(known.weights[went], known.attended.shares[went])
        if edge is None and not counts:
            continue
        begin = "to begin with" if source == START else f"after {source}"
        detail = f"{begin}: " + (
            f"{edge.why.rstrip('.')} (risk: {edge.risk.rstrip('.')})" if edge else "nobody described it"
        )
        if counts:
            detail += f", {mean:+.2f} measured in {len(went)} steps"
        prior, trusted = (edge.prior, edge.pseudo_counts) if edge else (0.0, 0.0)
        share = (trusted * prior + counts * mean) / (trusted + counts)
        worth = trusted if edge else min(counts, MEASURED_COUNTS)
        found.append(ScoreTerm(name="transition", share=share, counts=weight * worth, detail=detail))
    return found


def damping(state: SelectionState, direction: str) -> float:
    """What the steps of this run that chose the direction and closed nothing take off its score, 0 or more."""
    if not uses_path(state.mode):
        return 0.0
    steps = list(zip(state.prefix[::-1], state.prefix_outcomes[::-1], strict=False))
    weights = position_weights(len(steps), weighs_position(state.mode)).tolist()
    return math.fsum(
        DAMPING * weight
        for weight, (name, share) in zip(weights, steps, strict=True)
        if name == direction and share <= CLOSED_NOTHING
    )
