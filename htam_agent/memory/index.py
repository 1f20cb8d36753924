"""The exact in-memory index: what selection and retrieval read. It is rebuilt from the store when that is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.embed import Embedder
from htam_agent.memory.evidence import Evidence, share_of
from htam_agent.memory.model import Direction, Experience, Strategy, Transition

__all__ = ["Evidence", "Memory", "MemoryIndex", "Texts", "share_of", "strategy_text"]


class Memory(Protocol):
    """What selection and retrieval need of a memory: a MemoryIndex, or a MemoryStore (which answers from its index)."""

    @property
    def index(self) -> MemoryIndex:
        """What the memory holds now. A question takes it once and asks nothing else: a refresh in another thread puts
        another index in its place, whose codes and positions are not this one's."""
        ...

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


@dataclass
class Texts:
    """Embedded texts of the strategies: `vectors` maps an id to a unit vector [dimension]."""

    embedder: Embedder
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    _latest: tuple[str, NDArray[np.float32]] | None = field(default=None, repr=False)

    def embedded(self, text: str) -> NDArray[np.float32]:
        """The vector [dimension] of a text. The last one is kept: a step asks several times for the same."""
        latest = self._latest
        if latest is None or latest[0] != text:
            latest = self._latest = (text, self.embedder.embed([text])[0])
        return latest[1]


@dataclass
class MemoryIndex:
    """All records by id, and the experiences as arrays."""

    texts: Texts
    directions: dict[str, Direction] = field(default_factory=dict)
    strategies: dict[str, Strategy] = field(default_factory=dict)
    transitions: dict[str, Transition] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def index(self) -> MemoryIndex:
        """See Memory."""
        return self

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
