"""The exact in-memory index: what selection and retrieval read. It is rebuilt from the store when that is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.embed import Embedder
from htam_agent.memory.model import START, Direction, Experience, SelectionState, Strategy, Transition
from htam_agent.memory.share import share_closed
from htam_agent.memory.vector import VECTOR_SIZE, state_vector

REMEMBERED_POSITIONS = 4
"""Directions of a prefix that are compared: with POSITION_DECAY a fifth would weigh a sixteenth of the nearest."""

POSITION_DECAY = 0.5
"""Each step further back weighs half: what a kernel is now was shaped most by the last step."""

SAME_ARCHITECTURE = 0.7
SAME_BACKEND = 0.4
OTHER_BACKEND = 0.1
"""How much an experience from elsewhere counts, where one from the same device counts 1."""

OTHER_PREFIX = 0.4
"""How much an experience counts whose path shares nothing with this one's: the step still was this direction."""

WEAKEST = 0.02
NEAREST = 512
"""Experiences below the weight WEAKEST, and those beyond the NEAREST strongest, are left out: thousands of strangers
must not outvote a few relatives. (Of equals at the border all stay, so that the order of storing does not decide.)"""


class Memory(Protocol):
    """What selection and retrieval need of a memory: a MemoryIndex, or a MemoryStore (which answers from its index)."""

    @property
    def directions(self) -> Mapping[str, Direction]: ...

    @property
    def strategies(self) -> Mapping[str, Strategy]: ...

    @property
    def transitions(self) -> Mapping[str, Transition]: ...

    @property
    def evidence(self) -> Evidence: ...

    @property
    def texts(self) -> Texts: ...


class Evidence:
    """Experiences as arrays that grow by doubling, in the order of arrival; a known id replaces its old record."""

    def __init__(self) -> None:
        self.records: list[Experience] = []
        self._positions: dict[str, int] = {}
        self._codes: dict[str, int] = {"": -1}
        self._vectors = np.zeros((16, VECTOR_SIZE), dtype=np.float32)
        self._prefixes = np.full((16, REMEMBERED_POSITIONS), -1, dtype=np.int32)
        self._places = np.full((16, 3), -1, dtype=np.int32)
        self.shares: list[float] = []

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: Experience) -> None:
        """Adds or replaces one experience. Its row is written before it is counted: a reader in another thread sees all
        of it or nothing."""
        position = self._positions.setdefault(record.id, len(self.records))
        self._reserve(position)
        self._vectors[position] = state_vector(record)
        self._prefixes[position] = self._prefix(record.prefix)
        device = record.device
        self._places[position] = [self._code(text) for text in (device.backend, device.architecture, device.name)]
        self.shares[position : position + 1] = [share_of(record)]
        self.records[position : position + 1] = [record]

    def weights(self, state: SelectionState) -> NDArray[np.float64]:
        """Weight [n] of each experience in this state, 0 to 1: similarity x kinship of device x kinship of path."""
        count = len(self.records)
        difference = self._vectors[:count] - state_vector(state)
        distances = np.einsum("ij,ij->i", difference, difference)
        weights: NDArray[np.float64] = np.exp(-distances) * self._kinship(state) * self._path_match(state)
        weakest = max(WEAKEST, float(np.partition(weights, -NEAREST)[-NEAREST])) if count > NEAREST else WEAKEST
        weights[weights < weakest] = 0.0
        return weights

    def _kinship(self, state: SelectionState) -> NDArray[np.float64]:
        architecture, name = "", ""
        if state.device is not None:
            architecture, name = state.device.architecture, state.device.name
        elif state.compute_capability is not None:
            architecture = f"sm_{state.compute_capability}"
        wanted = [self._codes.get(text, -2) if text else -2 for text in (state.backend, architecture, name)]
        same = self._places[: len(self.records)] == np.array(wanted, dtype=np.int32)
        within = np.where(same[:, 1], np.where(same[:, 2], 1.0, SAME_ARCHITECTURE), SAME_BACKEND)
        return np.where(same[:, 0], within, OTHER_BACKEND)

    def _path_match(self, state: SelectionState) -> NDArray[np.float64]:
        decay = POSITION_DECAY ** np.arange(REMEMBERED_POSITIONS)
        same = self._prefixes[: len(self.records)] == self._prefix(state.prefix)
        matched: NDArray[np.float64] = (same * (decay / decay.sum())).sum(axis=1)
        return OTHER_PREFIX + (1.0 - OTHER_PREFIX) * matched

    def _prefix(self, prefix: tuple[str, ...]) -> NDArray[np.int32]:
        """Codes of the directions, nearest first, with START before the first and -1 beyond."""
        nearest = [START, *prefix][::-1][:REMEMBERED_POSITIONS]
        padded = nearest + [""] * (REMEMBERED_POSITIONS - len(nearest))
        return np.array([self._code(name) for name in padded], dtype=np.int32)

    def _code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))

    def _reserve(self, position: int) -> None:
        if position >= len(self._vectors):
            self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])
            self._prefixes = np.concatenate([self._prefixes, np.full_like(self._prefixes, -1)])
            self._places = np.concatenate([self._places, np.full_like(self._places, -1)])


@dataclass
class Texts:
    """Embedded texts of the strategies: `vectors` maps an id to a unit vector [dimension]."""

    embedder: Embedder
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass
class MemoryIndex:
    """All records by id, and the experiences as arrays."""

    texts: Texts
    directions: dict[str, Direction] = field(default_factory=dict)
    strategies: dict[str, Strategy] = field(default_factory=dict)
    transitions: dict[str, Transition] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)

    @classmethod
    def of(
        cls,
        embedder: Embedder,
        directions: Iterable[Direction] = (),
        strategies: Iterable[Strategy] = (),
        transitions: Iterable[Transition] = (),
        experiences: Iterable[Experience] = (),
    ) -> MemoryIndex:
        """An index over these records alone, without a store."""
        index = cls(
            texts=Texts(embedder),
            directions={record.id: record for record in directions},
            transitions={record.id: record for record in transitions},
        )
        for strategy in strategies:
            index.strategies[strategy.id] = strategy
            index.texts.vectors[strategy.id] = embedder.embed([strategy_text(strategy)])[0]
        for experience in experiences:
            index.evidence.add(experience)
        return index


def strategy_text(strategy: Strategy) -> str:
    """What a strategy's vector is made of."""
    return " ".join([strategy.title, strategy.how, strategy.direction, *strategy.pitfalls])


def share_of(experience: Experience) -> float:
    """The share of the gap that this step closed; a failure counts minus its cost, a kernel left at the floor 0."""
    if experience.verdict == "at-floor":
        return 0.0
    after = experience.time_after_ms if experience.verdict == "correct" else None
    return share_closed(experience.time_before_ms, after, experience.floor_ms)
