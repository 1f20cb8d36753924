"""A choice in words, and the experiences that weighed most in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.index import Memory
from htam_agent.memory.model import Experience, ScoreTerm, TermName, WeighedExperience
from htam_agent.memory.posterior import Posterior, mean_and_counts

SHOWN = 3
"""Experiences that are named with a choice."""

DOUBTED = 0.5
"""A source with less trust than this is said to be doubted."""


def weighed_most(known: Posterior, rows: NDArray[np.intp], memory: Memory) -> tuple[WeighedExperience, ...]:
    """The SHOWN heaviest of the attended experiences `rows`, heaviest first; of equals the first (evidence.py orders
    them in a way that does not depend on when they were stored)."""
    heaviest = rows[np.argsort(-known.weights[rows], kind="stable")[:SHOWN]]
    return tuple(_weighed(known, row, memory) for row in heaviest.tolist())


def _record(known: Posterior, row: int, memory: Memory) -> Experience:
    return memory.evidence.records[int(known.attended.positions[row])]


def _weighed(known: Posterior, row: int, memory: Memory) -> WeighedExperience:
    record = _record(known, row, memory)
    return WeighedExperience(
        id=record.id,
        task=record.task,
        device=record.device.name,
        strategy=record.strategy,
        verdict=record.verdict,
        share=float(known.attended.shares[row]),
        weight=float(known.weights[row]),
        trust=float(known.trust[row]),
    )


def why_direction(
    score: float, terms: Sequence[ScoreTerm], known: Posterior, rows: NDArray[np.intp], memory: Memory
) -> str:
    """The score and its terms in words; of several transitions the nearest speaks."""
    parts = [f"{score:.2f} of the remaining gap expected"]
    said = {term.name: term for term in reversed(terms)}
    named: tuple[TermName, ...] = ("fit", "strategies", "transition")
    parts += [f"{said[name].share:.2f} {said[name].detail}" for name in named if name in said]
    if len(rows):
        parts.append(_experience_words(known, rows, memory))
    if "damping" in said:
        parts.append(f"{-said['damping'].share:.2f} off, {said['damping'].detail}")
    if "exploration" in said:
        parts.append(f"exploration {said['exploration'].share:+.2f}")
    return "; ".join(parts) + "."


def _experience_words(known: Posterior, rows: NDArray[np.intp], memory: Memory) -> str:
    mean, counts = mean_and_counts(known.weights[rows], known.attended.shares[rows])
    record = _record(known, int(rows[np.argmax(known.weights[rows])]), memory)
    outcome: str = record.verdict
    if record.verdict == "correct" and record.time_after_ms:
        outcome = f"{record.time_before_ms / record.time_after_ms:.2f}x"
    words = (
        f"measured {mean:+.2f} on average in {len(rows)} steps like this ({counts:.1f} counts), "
        f"nearest {record.strategy} on {record.task} ({record.device.name}): {outcome}"
    )
    doubted = int((known.trust[rows] < DOUBTED).sum())
    if doubted:
        words += f"; {doubted} of them count less, since their source mispredicts what was measured elsewhere"
    return words
