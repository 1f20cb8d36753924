"""Seeded draws that depend on what is drawn for, not on the order of drawing: each name has its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.model import SelectionState


def uniform(state: SelectionState, names: Sequence[str]) -> NDArray[np.float64]:
    """A number in (0, 1) for each name [names], the same for the same seed, step and name on every machine."""
    return _fractions(state, names)[:, 0]


def normal(state: SelectionState, names: Sequence[str]) -> NDArray[np.float64]:
    """A draw from N(0, 1) for each name [names] by the Box-Muller transform, as reproducible as `uniform`."""
    radius, turn = _fractions(state, names).T
    return np.asarray(np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * turn), dtype=np.float64)


def _fractions(state: SelectionState, names: Sequence[str]) -> NDArray[np.float64]:
    """Two numbers above 0 and below 1 for each name [names, 2], of 53 bits each."""
    # The steps left keep step 2 of one seed apart from step 1 of the next, when seeds are counted up by the step.
    begun = hashlib.blake2b(f"{state.seed}\0{state.steps_left}\0".encode(), digest_size=16)
    digests = bytearray()
    for name in names:
        one = begun.copy()
        one.update(name.encode())
        digests += one.digest()
    bits = np.frombuffer(bytes(digests), dtype=">u8").astype(np.uint64).reshape(-1, 2) >> np.uint64(11)
    return (bits.astype(np.float64) + 0.5) / 2.0**53
