"""The experiences as arrays, and which of them count in a state: attention by similarity, device and path."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.model import START, Experience, SelectionState
from htam_agent.memory.modes import uses_path, weighs_position
from htam_agent.memory.share import share_closed
from htam_agent.memory.vector import COURSE, VECTOR_SIZE, state_vector

REMEMBERED_POSITIONS = 4
"""Directions of a prefix that are compared: with POSITION_DECAY a fifth would weigh a sixteenth of the nearest."""

POSITION_DECAY = 0.5
"""Each step further back weighs half: what a kernel is now was shaped most by the last step."""

SAME_ARCHITECTURE = 0.7
SAME_BACKEND = 0.4
OTHER_BACKEND = 0.1
"""Kinship of devices: how much an experience from elsewhere counts, where one from the same device counts 1. From
another backend it says something of the direction only, never of a strategy (ranking.py)."""

OTHER_PREFIX = 0.4
"""How much an experience counts whose path shares nothing with this one's: the step still was this direction."""

WEAKEST = 0.02
NEAREST = 512
"""Experiences below the weight WEAKEST are left out, and of those of other tasks or devices all beyond the NEAREST
strongest: thousands of strangers must not outvote a few relatives, nor push out what was measured on the task at hand.
(Of equals at the border all stay, so that the order of storing does not decide.)"""

MARGIN = 1e-3
"""Relative; a hundred times the error of a similarity in single precision."""

_FIELDS = ("backend", "architecture", "device", "direction", "strategy", "task", "run")
BACKEND, ARCHITECTURE, DEVICE, DIRECTION, STRATEGY, TASK, RUN = range(len(_FIELDS))
"""Rows of `Attended.codes`."""


@dataclass(frozen=True)
class Attended:
    """The n experiences that count in a state, in an order that does not depend on how they were stored."""

    positions: NDArray[np.intp]
    """Into Evidence.records, [n]."""
    weights: NDArray[np.float64]
    """Similarity x kinship of the device x match of the path, above 0 and at most 1, [n]."""
    shares: NDArray[np.float64]
    """Share of the gap that each closed, [n]."""
    codes: NDArray[np.int32]
    """Codes (Evidence.code) of where and what each was, [7, n]."""
    nearest: NDArray[np.int32]
    """Codes of the direction before each, START at a first step, [n]."""
    own: NDArray[np.bool_]
    """Measured on this very task and device, [n]."""

    def __len__(self) -> int:
        return len(self.positions)


class Evidence:
    """Experiences as arrays that grow by doubling, in the order of arrival; a known id replaces its old record."""

    def __init__(self) -> None:
        self.records: list[Experience] = []
        self._positions: dict[str, int] = {}
        self._codes: dict[str, int] = {"": -1}
        self._texts: list[str] = [""]
        self._vectors = np.zeros((16, VECTOR_SIZE), dtype=np.float32)
        self._squares = np.zeros(16, dtype=np.float32)
        self._prefixes = np.full((REMEMBERED_POSITIONS, 16), -1, dtype=np.int32)
        self._facts = np.full((len(_FIELDS), 16), -1, dtype=np.int32)
        self._shares = np.zeros(16, dtype=np.float64)
        self._keys = np.zeros(16, dtype=np.int64)
        self.version = 0
        """Changes with every record."""

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: Experience) -> None:
        """Adds or replaces one experience. Its row is written before it is counted: a reader in another thread sees all
        of it or nothing."""
        position = self._positions.setdefault(record.id, len(self.records))
        self._reserve(position)
        vector = state_vector(record)
        self._vectors[position], self._squares[position] = vector, vector @ vector
        self._prefixes[:, position] = [self._encode(name) for name in _remembered(record.prefix)]
        device = record.device
        place = (device.backend, device.architecture, f"{device.architecture} {device.name}")
        what = (record.direction, record.strategy, record.task, record.run)
        self._facts[:, position] = [self._encode(text) for text in (*place, *what)]
        self._shares[position] = share_of(record)
        self._keys[position] = _key(record.id)
        self.records[position : position + 1] = [record]
        self.version += 1

    def code(self, text: str) -> int:
        """The number that stands for a text in the arrays; -2 where no experience holds it."""
        return self._codes.get(text, -2) if text else -2

    def text(self, code: int) -> str:
        """What a code stands for."""
        return self._texts[code + 1]

    @property
    def codes(self) -> int:
        """All codes are smaller than this."""
        return len(self._texts)

    def attended(self, state: SelectionState) -> Attended:
        """The experiences that count in this state, with their weights. In the mode no-update those of the state's own
        run do not count."""
        rows = self._candidates(state, len(self.records))
        difference = self._vectors[rows] - state_vector(state)
        if not uses_path(state.mode):
            difference[:, COURSE] = 0.0
        weights = np.exp(-np.einsum("ij,ij->i", difference, difference)) * self._affinity(state, rows)
        own = self._own(state, rows)
        kept = np.flatnonzero(weights >= _borders(weights, own))
        kept = kept[np.argsort(self._keys[rows[kept]], kind="stable")]
        weights, rows = weights[kept], rows[kept]
        return Attended(rows, weights, self._shares[rows], self._facts[:, rows], self._prefixes[0, rows], own[kept])

    def _candidates(self, state: SelectionState, count: int) -> NDArray[np.intp]:
        """Positions among which all that count are. The distances |v|^2 - 2 v q + |q|^2 by products are fast and
        good to about 1e-5; what lies within MARGIN of the border is looked at again exactly."""
        query = state_vector(state)
        # Not by BLAS, whose threads spin and wait for each other longer than this takes.
        products = np.einsum("ij,j->i", self._vectors[:count], query)
        distances = self._squares[:count] - 2.0 * products + query @ query
        if not uses_path(state.mode):
            course = self._vectors[:count, COURSE] - query[COURSE]
            distances -= np.einsum("ij,ij->i", course, course)
        weights = np.exp(-distances) * self._affinity(state, slice(0, count))
        if state.mode == "no-update" and state.run:
            weights[self._facts[RUN, :count] == self.code(state.run)] = 0.0
        borders = _borders(weights, self._own(state, slice(0, count)))
        return np.flatnonzero(weights >= borders * (1.0 - MARGIN))

    def _own(self, state: SelectionState, rows: slice | NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which rows were measured on the state's very task and device."""
        backend, _, device = self._place(state)
        facts = self._facts
        return np.asarray(
            (facts[TASK, rows] == self.code(state.task))
            & (facts[DEVICE, rows] == device)
            & (facts[BACKEND, rows] == backend)
        )

    def _place(self, state: SelectionState) -> tuple[int, int, int]:
        """Codes of backend, architecture and device of a state."""
        architecture, device = "", ""
        if state.device is not None:
            architecture = state.device.architecture
            device = f"{architecture} {state.device.name}"
        elif state.compute_capability is not None:
            architecture = f"sm_{state.compute_capability}"
        return self.code(state.backend), self.code(architecture), self.code(device)

    def _affinity(self, state: SelectionState, rows: slice | NDArray[np.intp]) -> NDArray[np.float32]:
        """Kinship of the device x match of the path, of each row."""
        backend, architecture, device = self._place(state)
        facts = self._facts
        kin = np.where(facts[ARCHITECTURE, rows] == architecture, SAME_ARCHITECTURE, SAME_BACKEND).astype(np.float32)
        kin[facts[DEVICE, rows] == device] = 1.0
        kin[facts[BACKEND, rows] != backend] = OTHER_BACKEND
        return kin * self._match(state, rows) if uses_path(state.mode) else kin

    def _match(self, state: SelectionState, rows: slice | NDArray[np.intp]) -> NDArray[np.float32]:
        """OTHER_PREFIX to 1 for each row, by the weighted share of agreeing places among those where one path has a
        direction. That both are too short for a place is no agreement; two first steps have the same path."""
        start, ours = self.code(START), state.prefix[::-1]
        weights = position_weights(REMEMBERED_POSITIONS, weighs_position(state.mode)).astype(np.float32)
        agreed, compared = np.zeros((2, *self._shares[rows].shape), dtype=np.float32)
        for place, weight in enumerate(weights):
            theirs = self._prefixes[place, rows]
            if place < len(ours):
                compared += weight
                agreed += weight * (theirs == self.code(ours[place]))
            else:
                compared += weight * ((theirs != -1) & (theirs != start))
        share = np.divide(agreed, compared, out=np.ones_like(agreed), where=compared > 0)
        return np.asarray(OTHER_PREFIX + np.float32(1.0 - OTHER_PREFIX) * share, dtype=np.float32)

    def _encode(self, text: str) -> int:
        known = self._codes.get(text)
        if known is None:
            known = len(self._texts) - 1
            self._texts.append(text)
            self._codes[text] = known
        return known

    def _reserve(self, position: int) -> None:
        if position >= len(self._vectors):
            self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])
            self._squares = np.concatenate([self._squares, np.zeros_like(self._squares)])
            self._prefixes = np.concatenate([self._prefixes, np.full_like(self._prefixes, -1)], axis=1)
            self._facts = np.concatenate([self._facts, np.full_like(self._facts, -1)], axis=1)
            self._shares = np.concatenate([self._shares, np.zeros_like(self._shares)])
            self._keys = np.concatenate([self._keys, np.zeros_like(self._keys)])


def _borders(weights: NDArray[np.floating], own: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The weight below which each is left out."""
    others, border = weights[~own], WEAKEST
    if len(others) > NEAREST:
        border = max(WEAKEST, float(np.partition(others, -NEAREST)[-NEAREST]))
    return np.where(own, WEAKEST, border)


def position_weights(count: int, decay: bool = True) -> NDArray[np.float64]:
    """Weight [count] of the steps of a path, nearest first: halved with each, or all alike, with one sum."""
    weights: NDArray[np.float64] = POSITION_DECAY ** np.arange(count, dtype=np.float64)
    return weights if decay else np.full(count, weights.mean() if count else 0.0)


def share_of(experience: Experience) -> float:
    """The share of the gap that this step closed; a failure counts minus its cost, a kernel left at the floor 0."""
    if experience.verdict == "at-floor":
        return 0.0
    after = experience.time_after_ms if experience.verdict == "correct" else None
    return share_closed(experience.time_before_ms, after, experience.floor_ms)


def _remembered(prefix: tuple[str, ...]) -> list[str]:
    """The REMEMBERED_POSITIONS directions before a step, nearest first: START before the first, nothing beyond."""
    nearest = [START, *prefix][::-1][:REMEMBERED_POSITIONS]
    return nearest + [""] * (REMEMBERED_POSITIONS - len(nearest))


def _key(identifier: str) -> int:
    """A number that orders experiences alike whenever they were stored. The place in the run (step, candidate,
    attempt) comes before the run's name, so that a run that is replayed under another name orders its own alike."""
    run, _, place = identifier.partition(":")
    parts = (hashlib.blake2b(part.encode(), digest_size=4).digest() for part in (place, run))
    return int.from_bytes(b"".join(parts), "big", signed=True)
