"""MemoryStore: the Hierarchical Transition Graph in Chroma, and the exact index that answers from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from htam_agent.errors import StoreError
from htam_agent.memory.chroma import Collections
from htam_agent.memory.connection import Connection
from htam_agent.memory.embed import Embedder, HashingEmbedder
from htam_agent.memory.index import Evidence, MemoryIndex, Texts
from htam_agent.memory.model import Direction, Experience, Strategy, Transition
from htam_agent.memory.records import Kind, MemoryRecord, text_of
from htam_agent.memory.seeding import Seed, load_seed
from htam_agent.memory.share import share_closed
from htam_agent.memory.sharing import connect_folder, connect_server, disconnect
from htam_agent.memory.vector import VECTOR_SIZE, VECTOR_VERSION, state_vector

if TYPE_CHECKING:
    from chromadb.api import ClientAPI

LOCK_WAIT_SECONDS = 30.0


class MemoryStore:
    """The one durable store of a memory, with everything that selection reads held in memory beside it.

    Chroma holds each record as a JSON document with flat metadata; directions, strategies and transitions carry the
    embedder's vector of their text, experiences their state vector. A write returns when the database has it. What
    other processes write after this store was opened is in the database, and is seen by the next store that opens it.
    """

    def __init__(self, connection: Connection, collections: Collections, embedder: Embedder, seed: Seed) -> None:
        """Use `open`."""
        self._connection = connection
        self._seed = seed
        self._collections = collections
        self._index = MemoryIndex(Texts(embedder))
        self._closed = False
        self.notes: list[str] = []
        """What was not done on opening, and why, in words."""

    @classmethod
    def open(
        cls,
        location: Path | None = None,
        url: str | None = None,
        embedder: Embedder | None = None,
        *,
        seed: Seed | None = None,
        wait_seconds: float = LOCK_WAIT_SECONDS,
    ) -> MemoryStore:
        """The memory in the folder `location` (made when missing), or of the Chroma server at `url`, which wins.

        A new memory gets the seed; one with another version's seed gets this one's: changed seed records are replaced,
        those that are gone disappear, and records of users and of runs stay. `embedder` defaults to HashingEmbedder.

        Raises StoreError when the memory is corrupt, newer, of another embedder, locked for longer than `wait_seconds`,
        or cannot be written; it is then as it was. Raises InfrastructureError when the server does not answer.
        """
        embedder = embedder or HashingEmbedder()
        seed = seed or load_seed()
        connection: Connection
        if url:
            connection = connect_server(url)
        elif location is not None:
            connection = connect_folder(location, wait_seconds)
        else:
            raise StoreError(
                "No place was given for the memory.", "Give a folder (the setting `memory`).", "memory-folder"
            )
        try:
            collections = Collections(
                connection.place,
                {"experiences": VECTOR_VERSION},
                {"experiences": VECTOR_SIZE},
                default=(embedder.id, embedder.dimension),
            )
            store = cls(connection, collections, embedder, seed)
            with connection.exclusive() as client:
                collections.prepare(client)
                store._take_over_seed(client)
                store._load(client)
        except BaseException:
            disconnect(connection)
            raise
        return store

    @property
    def place(self) -> str:
        """Where the memory lies, in words."""
        return self._connection.place

    @property
    def directions(self) -> Mapping[str, Direction]:
        return self._index.directions

    @property
    def strategies(self) -> Mapping[str, Strategy]:
        return self._index.strategies

    @property
    def transitions(self) -> Mapping[str, Transition]:
        return self._index.transitions

    @property
    def evidence(self) -> Evidence:
        return self._index.evidence

    @property
    def texts(self) -> Texts:
        return self._index.texts

    @property
    def experiences(self) -> Sequence[Experience]:
        return self._index.evidence.records

    def direction(self, identifier: str) -> Direction:
        """Raises StoreError when there is no such direction."""
        found = self.directions.get(identifier)
        if found is None:
            raise StoreError(
                f"There is no direction {identifier!r} in {self.place}.",
                f"Known are: {', '.join(sorted(self.directions))}.",
                "memory-unknown",
            )
        return found

    def add_experience(self, experience: Experience) -> None:
        """See add_experiences."""
        self.add_experiences([experience])

    def add_experiences(self, experiences: Sequence[Experience]) -> None:
        """Stores measured steps; a known id is rewritten, so that a replayed step counts once. Durable on return.

        Raises StoreError for an unknown direction or a time that is not a positive number; nothing is then stored.
        """
        for experience in experiences:
            self.direction(experience.direction)
            try:
                share_closed(experience.time_before_ms, experience.time_after_ms, experience.floor_ms)
            except ValueError as error:
                message = f"The experience {experience.id!r} is not stored: {error}"
                raise StoreError(message, "Measure the step again.", "memory-invalid") from error
        self._write("experiences", {experience.id: experience for experience in experiences})
        for experience in experiences:
            self.evidence.add(experience)

    def add_strategies(self, strategies: Sequence[Strategy]) -> None:
        """Stores a user's strategies under their ids. One stored before is replaced, and one of the seed is overridden
        until the user's is removed.

        Raises StoreError when a direction is unknown or an id is given twice; nothing is then stored.
        """
        given: dict[str, Strategy] = {}
        for strategy in strategies:
            self.direction(strategy.direction)
            if strategy.id in given:
                raise StoreError(
                    f"Two of the given strategies have the id {strategy.id!r}.", "Rename one.", "memory-duplicate"
                )
            given[strategy.id] = strategy.model_copy(update={"provenance": "user"})
        self._put_strategies({name: record for name, record in given.items() if self.strategies.get(name) != record})

    def remove_strategies(self, identifiers: Iterable[str]) -> None:
        """Removes strategies of users or runs; a seed strategy that one of them overrode is in force again.

        Raises StoreError for an unknown id and for a seed strategy; nothing is then removed.
        """
        names = set(identifiers)
        for name in sorted(names):
            known = self.strategies.get(name)
            if known is None or known.provenance == "seed":
                raise StoreError(
                    f"The strategy {name!r} {'is unknown' if known is None else 'belongs to the seed'}.",
                    "Only strategies that were added can be removed.",
                    "memory-unknown" if known is None else "memory-seed",
                )
        restored = {record.id: record for record in self._seed.strategies if record.id in names}
        with self._connection.exclusive() as client:
            self._collections.delete(client, "strategies", sorted(names - restored.keys()))
        for name in names:
            del self._index.strategies[name]
            del self._index.texts.vectors[name]
        self._put_strategies(restored)

    def _put_strategies(self, records: Mapping[str, Strategy]) -> None:
        self._write("strategies", records)
        for name, record in records.items():
            self._index.texts.vectors[name] = self.texts.embedder.embed([text_of(record)])[0]
            self._index.strategies[name] = record

    def counts(self) -> dict[Kind, int]:
        """Number of records of each kind that this store sees."""
        return {
            "directions": len(self.directions),
            "strategies": len(self.strategies),
            "transitions": len(self.transitions),
            "experiences": len(self.evidence),
        }

    def close(self) -> None:
        """Lets the database go; a second call does nothing. The index still answers."""
        if not self._closed:
            self._closed = True
            disconnect(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _write(self, kind: Kind, records: Mapping[str, MemoryRecord]) -> None:
        if not records:
            return
        vectors = self._vectors(list(records.values()))
        with self._connection.exclusive() as client:
            self._collections.upsert(client, kind, records, vectors)

    def _vectors(self, records: Sequence[MemoryRecord]) -> NDArray[np.float32]:
        """[len(records), dimension]: state vectors of experiences, text vectors of everything else."""
        states = [state_vector(record) for record in records if isinstance(record, Experience)]
        if states:
            return np.stack(states)
        return self.texts.embedder.embed([text_of(each) for each in records if not isinstance(each, Experience)])

    def _take_over_seed(self, client: ClientAPI) -> None:
        """Brings the stored seed to this one. Its digest is written last, so that a seeding cut short is done again."""
        seed = self._seed
        if self._collections.seed_digest(client) == seed.digest:
            return
        parts: dict[Kind, Sequence[Direction | Strategy | Transition]] = {
            "directions": seed.directions,
            "strategies": seed.strategies,
            "transitions": seed.transitions,
        }
        for kind, wanted in parts.items():
            stored = self._collections.provenances(client, kind)
            kept = {name for name, provenance in stored.items() if provenance != "seed"}
            records = {record.id: record for record in wanted if record.id not in kept}
            self._collections.delete(client, kind, sorted(stored.keys() - records.keys() - kept))
            if records:
                self._collections.upsert(client, kind, records, self._vectors(list(records.values())))
            self.notes += [
                f"The seed's {record.id!r} among the {kind} was left out: the memory has an own record of this id."
                for record in wanted
                if record.id in kept
            ]
        self._collections.set_seed_digest(client, seed.digest)

    def _load(self, client: ClientAPI) -> None:
        for record, vector in self._collections.read(client, "strategies", vectors=True):
            if isinstance(record, Strategy) and vector is not None:
                self._index.strategies[record.id] = record
                self._index.texts.vectors[record.id] = vector
        kinds: tuple[Kind, ...] = ("directions", "transitions", "experiences")
        for kind in kinds:
            for record, _ in self._collections.read(client, kind):
                if isinstance(record, Direction):
                    self._index.directions[record.id] = record
                elif isinstance(record, Transition):
                    self._index.transitions[record.id] = record
                elif isinstance(record, Experience):
                    self.evidence.add(record)
