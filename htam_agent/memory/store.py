"""MemoryStore: the Hierarchical Transition Graph in Chroma, and the exact index that answers from it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from htam_agent.errors import StoreError
from htam_agent.memory.chroma import Collections
from htam_agent.memory.connection import Connection
from htam_agent.memory.embed import Embedder, HashingEmbedder
from htam_agent.memory.index import Evidence, MemoryIndex, Texts
from htam_agent.memory.model import Direction, Experience, Strategy, Transition
from htam_agent.memory.records import KINDS, Kind, MemoryRecord, in_turns, text_of
from htam_agent.memory.rules import by_id, check_experience, check_readable
from htam_agent.memory.seeding import Seed, load_seed
from htam_agent.memory.sharing import connect_folder, connect_server, disconnect
from htam_agent.memory.vector import VECTOR_SIZE, VECTOR_VERSION, state_vector

if TYPE_CHECKING:
    from chromadb.api import ClientAPI

LOCK_WAIT_SECONDS = 30.0

T = TypeVar("T")


class MemoryStore:
    """The one durable store of a memory, with everything that selection reads held in memory beside it.

    Chroma holds each record as a JSON document with flat metadata; directions, strategies and transitions carry the
    embedder's vector of their text, experiences their state vector. A write returns when the database has it. What
    other processes write is seen on opening and after `refresh`, which every run calls as it starts.
    """

    def __init__(self, connection: Connection, collections: Collections, embedder: Embedder, seed: Seed) -> None:
        """Use `open`."""
        self._connection = connection
        self._seed = seed
        self._collections = collections
        self._index = MemoryIndex(Texts(embedder))
        self._changing = threading.RLock()
        self._seen: str | None = None
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
        those that are gone disappear, and records of users and of runs stay. `embedder` defaults to HashingEmbedder; in
        a folder, records that have vectors of another one get new vectors (`notes` say so).

        Raises StoreError when the memory is corrupt, newer, of another embedder on a server, locked for longer than
        `wait_seconds`, or cannot be written; it is then as it was. Raises InfrastructureError when the server does not
        answer.
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
            store._open()
        except BaseException:
            disconnect(connection)
            raise
        return store

    def _open(self) -> None:
        with self._connection.exclusive() as client:
            ready = self._collections.is_ready(client, self._seed.digest)
            if ready:
                self._load(client)
        if not ready:
            with self._connection.exclusive(writing=True) as client:
                self.notes += self._collections.prepare(client, self._vectors, alone=self._connection.alone)
                self._take_over_seed(client)
                self._load(client)

    def refresh(self) -> bool:
        """Takes in what other processes wrote; True when anything was read anew. A server is always read.

        Raises StoreError, InfrastructureError: see open.
        """
        with self._changing, self._connection.exclusive() as client:
            if self._connection.version is not None and self._connection.version == self._seen:
                return False
            self._load(client)
            return True

    @property
    def place(self) -> str:
        """Where the memory lies, in words."""
        return self._connection.place

    @property
    def index(self) -> MemoryIndex:
        """What it holds now; `refresh` and `remove` put another in its place, which leaves this one as it was."""
        return self._index

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

        Raises StoreError for an unknown direction, a time that is not a positive number, or an id that two of them
        have; nothing is then stored.
        """
        for experience in experiences:
            check_experience(experience, self.directions)
        self.put("experiences", by_id(experiences))

    def add_strategies(self, strategies: Sequence[Strategy]) -> None:
        """Stores a user's strategies under their ids. One stored before is replaced, and one of the seed is overridden
        until the user's is removed.

        Raises StoreError when a direction is unknown or an id is given twice; nothing is then stored.
        """
        for strategy in strategies:
            self.direction(strategy.direction)
        given = by_id([strategy.model_copy(update={"provenance": "user"}) for strategy in strategies])
        self.put("strategies", {name: one for name, one in given.items() if self.strategies.get(name) != one})

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
                    "Only strategies that were added can be removed (`htam memory list --kind strategies`).",
                    "memory-unknown" if known is None else "memory-seed",
                )
        restored = {record.id: record for record in self._seed.strategies if record.id in names}
        self.put("strategies", restored)
        self.remove("strategies", names - restored.keys())

    def put(self, kind: Kind, records: Mapping[str, MemoryRecord]) -> None:
        """Writes records of one kind by id, as they are, then shows them to selection. The caller has checked them.

        Raises StoreError for a record that could not be read again; nothing is then stored.
        """
        if not records:
            return
        for record in records.values():
            check_readable(record)
        for part in in_turns(records):
            vectors = self._vectors(list(part.values()))
            with self._changing:
                with self._writing() as client:
                    self._collections.upsert(client, kind, part, vectors)
                for record, vector in zip(part.values(), vectors, strict=True):
                    _enter(self._index, record, vector)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Sees what others wrote, and keeps them from writing until the block ends. A server keeps nobody out, and is
        not read."""
        with self._changing, self._connection.exclusive():
            if self._connection.alone:
                self.refresh()
            yield

    def remove(self, kind: Kind, identifiers: Iterable[str]) -> None:
        """Removes records of one kind; ids that are not there are passed over. The index is built anew."""
        names = sorted(set(identifiers))
        if not names:
            return
        for part in in_turns(dict.fromkeys(names)):
            with self._changing:
                with self._writing() as client:
                    self._collections.delete(client, kind, list(part))
                self._index = _without(self._index, kind, set(part))

    def records(self, kind: Kind) -> list[MemoryRecord]:
        """Every record of a kind, by id."""
        found: dict[Kind, Iterable[MemoryRecord]] = {
            "directions": self.directions.values(),
            "strategies": self.strategies.values(),
            "transitions": self.transitions.values(),
            "experiences": self.experiences,
        }
        return sorted(found[kind], key=lambda record: record.id)

    @property
    def fingerprint(self) -> str:
        """Digest of every record by kind and id: two memories that have the same one hold the same."""
        lines = (f"{kind} {record.model_dump_json()}\n" for kind in KINDS for record in self.records(kind))
        whole = hashlib.blake2b(digest_size=16)
        for line in lines:
            whole.update(line.encode())
        return whole.hexdigest()

    @property
    def seed(self) -> Seed:
        return self._seed

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

    @contextmanager
    def _writing(self) -> Iterator[ClientAPI]:
        """A client to write with. What this store wrote itself it need not read anew."""
        with self._connection.exclusive(writing=True) as client:
            version = self._connection.version
            if version is not None and self._seen is not None and int(version) == int(self._seen) + 1:
                self._seen = version
            yield client

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
        """The index anew from the database, checked by count and digests (Collections.read); it takes the place of the
        old one when it is whole, so that another thread sees either."""
        index = MemoryIndex(Texts(self._index.texts.embedder))
        for kind in KINDS:
            for row in self._collections.read(client, kind, vectors=kind == "strategies"):
                _enter(index, row.record, row.vector)
        self._index = index
        self._seen = self._connection.version


def _enter(index: MemoryIndex, record: MemoryRecord, vector: NDArray[np.float32] | None) -> None:
    if isinstance(record, Experience):
        index.evidence.add(record)
    elif isinstance(record, Transition):
        index.transitions[record.id] = record
    elif isinstance(record, Direction):
        index.directions[record.id] = record
    else:
        assert vector is not None, "strategies are read with their vectors"
        index.texts.vectors[record.id] = vector
        index.strategies[record.id] = record


def _without(index: MemoryIndex, kind: Kind, names: set[str]) -> MemoryIndex:
    """The index without some records of one kind."""
    gone: dict[Kind, set[str]] = {kind: names}

    def kept(of: Kind, records: Mapping[str, T]) -> dict[str, T]:
        return {name: record for name, record in records.items() if name not in gone.get(of, ())}

    answer = MemoryIndex(
        Texts(index.texts.embedder, kept("strategies", index.texts.vectors)),
        kept("directions", index.directions),
        kept("strategies", index.strategies),
        kept("transitions", index.transitions),
    )
    for record in index.evidence.records:
        if record.id not in gone.get("experiences", ()):
            answer.evidence.add(record)
    return answer
