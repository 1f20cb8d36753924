"""Seeded draws that depend on what is drawn for, not on the order of drawing: each name has its own."""

from __future__ import annotations

import hashlib
import math

from htam_agent.memory.model import SelectionState


def uniform(state: SelectionState, name: str) -> float:
    """A number in (0, 1), the same for the same seed, step and name on every machine."""
    return _fraction(_digest(state, name)[:8])


def normal(state: SelectionState, name: str) -> float:
    """A draw from N(0, 1) by the Box-Muller transform, as reproducible as `uniform`."""
    digest = _digest(state, name)
    radius = math.sqrt(-2.0 * math.log(_fraction(digest[:8])))
    return radius * math.cos(2.0 * math.pi * _fraction(digest[8:]))


def _digest(state: SelectionState, name: str) -> bytes:
    # The steps left keep step 2 of one seed apart from step 1 of the next, when seeds are counted up by the step.
    key = "\0".join([str(state.seed), str(state.steps_left), name])
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


def _fraction(data: bytes) -> float:
    """53 bits of 8 bytes as a number above 0 and below 1."""
    return ((int.from_bytes(data, "big") >> 11) + 0.5) / 2.0**53
