"""The experiences as arrays, and which of them count in a state: attention by similarity, device and path."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.model import START, Experience, SelectionState
from htam_agent.memory.modes import uses_path, weighs_position
from htam_agent.memory.share import share_closed
from htam_agent.memory.vector import VECTOR_SIZE, state_vector

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
"""Experiences below the weight WEAKEST, and those beyond the NEAREST strongest, are left out: thousands of strangers
must not outvote a few relatives. (Of equals at the border all stay, so that the order of storing does not decide.)"""

_FIELDS = ("backend", "architecture", "device", "direction", "strategy", "task", "run")
BACKEND, ARCHITECTURE, DEVICE, DIRECTION, STRATEGY, TASK, RUN = range(len(_FIELDS))
"""Columns of `Attended.codes`."""


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
    """Codes (Evidence.code) of where and what each was, [n, 7]."""
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
        self._prefixes = np.full((16, REMEMBERED_POSITIONS), -1, dtype=np.int32)
        self._facts = np.full((16, len(_FIELDS)), -1, dtype=np.int32)
        self._shares = np.zeros(16, dtype=np.float64)
        self._keys = np.zeros(16, dtype=np.int64)
        self._version = 0
        self._latest: tuple[int, SelectionState, Attended] | None = None

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: Experience) -> None:
        """Adds or replaces one experience. Its row is written before it is counted: a reader in another thread sees all
        of it or nothing."""
        position = self._positions.setdefault(record.id, len(self.records))
        self._reserve(position)
        self._vectors[position] = state_vector(record)
        self._prefixes[position] = [self._encode(name) for name in _remembered(record.prefix)]
        device = record.device
        place = (device.backend, device.architecture, f"{device.architecture} {device.name}")
        what = (record.direction, record.strategy, record.task, record.run)
        self._facts[position] = [self._encode(text) for text in (*place, *what)]
        self._shares[position] = share_of(record)
        self._keys[position] = _key(record.id)
        self.records[position : position + 1] = [record]
        self._version += 1

    def code(self, text: str) -> int:
        """The number that stands for a text in the arrays; -2 where no experience holds it."""
        return self._codes.get(text, -2) if text else -2

    def text(self, code: int) -> str:
        """What a code stands for."""
        return self._texts[code + 1]

    def attended(self, state: SelectionState) -> Attended:
        """The experiences that count in this state, with their weights. In the mode no-update those of the state's own
        run do not count. The last answer is kept, since selection, retrieval and coders ask for the same state."""
        latest, version = self._latest, self._version
        if latest is not None and latest[0] == version and (latest[1] is state or latest[1] == state):
            return latest[2]
        count = len(self.records)
        weights = self._weights(state, count)
        kept = np.flatnonzero(weights)
        kept = kept[np.argsort(self._keys[kept], kind="stable")]
        codes = self._facts[kept]
        _, _, device = self._place(state)
        own = (codes[:, TASK] == self.code(state.task)) & (codes[:, DEVICE] == device)
        own &= codes[:, BACKEND] == self.code(state.backend)
        found = Attended(kept, weights[kept], self._shares[kept], codes, self._prefixes[kept, 0], own)
        self._latest = (version, state, found)
        return found

    def _weights(self, state: SelectionState, count: int) -> NDArray[np.float64]:
        """Weight [count] of each experience, 0 where it does not count."""
        difference = self._vectors[:count] - state_vector(state)
        distances = np.einsum("ij,ij->i", difference, difference)
        weights: NDArray[np.float64] = np.exp(-distances) * self._kinship(state, count)
        if uses_path(state.mode):
            weights *= self._path_match(state, count)
        if state.mode == "no-update" and state.run:
            weights[self._facts[:count, RUN] == self.code(state.run)] = 0.0
        weakest = max(WEAKEST, float(np.partition(weights, -NEAREST)[-NEAREST])) if count > NEAREST else WEAKEST
        weights[weights < weakest] = 0.0
        return weights

    def _place(self, state: SelectionState) -> tuple[int, int, int]:
        """Codes of backend, architecture and device of a state."""
        architecture, device = "", ""
        if state.device is not None:
            architecture = state.device.architecture
            device = f"{architecture} {state.device.name}"
        elif state.compute_capability is not None:
            architecture = f"sm_{state.compute_capability}"
        return self.code(state.backend), self.code(architecture), self.code(device)

    def _kinship(self, state: SelectionState, count: int) -> NDArray[np.float64]:
        backend, architecture, device = self._place(state)
        facts = self._facts[:count]
        within = np.where(facts[:, ARCHITECTURE] == architecture, SAME_ARCHITECTURE, SAME_BACKEND)
        within[facts[:, DEVICE] == device] = 1.0
        return np.where(facts[:, BACKEND] == backend, within, OTHER_BACKEND)

    def _path_match(self, state: SelectionState, count: int) -> NDArray[np.float64]:
        path = [self._codes.get(name, -2) for name in _remembered(state.prefix)]
        same = self._prefixes[:count] == np.array(path, dtype=np.int32)
        weights = position_weights(REMEMBERED_POSITIONS, weighs_position(state.mode))
        matched: NDArray[np.float64] = (same * (weights / weights.sum())).sum(axis=1)
        return OTHER_PREFIX + (1.0 - OTHER_PREFIX) * matched

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
            self._prefixes = np.concatenate([self._prefixes, np.full_like(self._prefixes, -1)])
            self._facts = np.concatenate([self._facts, np.full_like(self._facts, -1)])
            self._shares = np.concatenate([self._shares, np.zeros_like(self._shares)])
            self._keys = np.concatenate([self._keys, np.zeros_like(self._keys)])


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
    """A number that orders experiences in the same way whenever they were stored."""
    return int.from_bytes(hashlib.blake2b(identifier.encode(), digest_size=8).digest(), "big", signed=True)
