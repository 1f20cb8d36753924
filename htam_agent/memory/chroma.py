"""The four Chroma collections: their marks (schema, embedder, seed), paged reads and batched writes.

Each row carries the digest of its document: what is read is compared with what was written, and the number of rows
with the database's own count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from htam_agent.errors import StoreError
from htam_agent.memory.model import SCHEMA_VERSION
from htam_agent.memory.records import DIGEST, KINDS, Kind, MemoryRecord, digest_of, metadata_of, parse

if TYPE_CHECKING:
    from chromadb.api import ClientAPI
    from chromadb.api.collection_configuration import CreateCollectionConfiguration
    from chromadb.api.models.Collection import Collection

PAGE = 1000
"""Records of one read or write: Chroma refuses batches beyond 5461 and unpaged reads beyond some 30,000."""

PREFIX = "htam-"
ANEW = "htam-anew-"
"""Before the kind: a collection whose records are being given vectors of another embedder."""

SCHEMA, EMBEDDER, DIMENSION, SEED = "htam_schema", "htam_embedder", "htam_dimension", "htam_seed"
WHOLE = "htam_whole"
"""Marks a collection of ANEW that holds every record, so that it may take the old one's place."""

READS = 3
"""How often a collection is read until what was read fits its count: others may change a server's meanwhile."""

# With Chroma's defaults a query misses one neighbour in seven among 10,000 records, with these one in two hundred;
# wider ones cost more on every write. Our own search is exact and does without: this index is for whoever queries the
# database directly.
CONFIGURATION: CreateCollectionConfiguration = {
    "hnsw": {"space": "cosine", "max_neighbors": 32, "ef_construction": 200, "ef_search": 200}
}


Vectors: TypeAlias = Callable[[Sequence[MemoryRecord]], NDArray[np.float32]]
"""Records of one kind to their vectors [len(records), dimension]."""


@dataclass(frozen=True)
class Row:
    """One stored record with the digest of its document, and its vector [dimension] where that was asked for."""

    record: MemoryRecord
    digest: str
    vector: NDArray[np.float32] | None = None


class Collections:
    """Reads and writes records; the client comes from the caller, who holds the database meanwhile."""

    def __init__(
        self, place: str, embedders: Mapping[Kind, str], dimensions: Mapping[Kind, int], default: tuple[str, int]
    ) -> None:
        """`embedders` and `dimensions` for the kinds that do not have those of `default`."""
        self.place = place
        self._embedder = {kind: embedders.get(kind, default[0]) for kind in KINDS}
        self._dimension = {kind: dimensions.get(kind, default[1]) for kind in KINDS}

    def prepare(self, client: ClientAPI, vectors: Vectors, *, alone: bool) -> list[str]:
        """Makes the collections that are missing, after the marks of those that exist were found to fit, and gives the
        records of another embedder new vectors. Returns what was done to existing records, in words.

        Raises StoreError for another schema, and for another embedder where the database is not held `alone`, before
        anything is written.
        """
        found = {kind: self._find(client, kind) for kind in KINDS}
        others = [kind for kind, one in found.items() if one is not None and self._is_foreign(kind, one, alone)]
        for kind, one in found.items():
            if one is None:
                self._create(client, PREFIX + kind, self._marks(kind))
        for kind in others:
            self._embed_anew(client, kind, vectors)
        return [
            f"The {kind} had vectors of another embedder than {self._embedder[kind]!r}; all were made anew."
            for kind in others
        ]

    def is_ready(self, client: ClientAPI, seed_digest: str) -> bool:
        """Whether nothing is to be prepared: all collections with these marks, and the seed of this digest."""
        from chromadb.errors import NotFoundError

        try:
            marks = {kind: self._of(client, kind).metadata or {} for kind in KINDS}
        except NotFoundError:
            return False
        fit = all(found.items() >= self._marks(kind).items() for kind, found in marks.items())
        return fit and marks["directions"].get(SEED) == seed_digest

    def _find(self, client: ClientAPI, kind: Kind) -> Collection | None:
        """The collection of a kind; one that was made anew and did not yet get its name gets it."""
        from chromadb.errors import NotFoundError

        try:
            return client.get_collection(PREFIX + kind, embedding_function=None)
        except NotFoundError:
            pass
        try:
            anew = client.get_collection(ANEW + kind, embedding_function=None)
        except NotFoundError:
            return None
        if not (anew.metadata or {}).get(WHOLE):
            return None
        anew.modify(name=PREFIX + kind)
        return anew

    def _embed_anew(self, client: ClientAPI, kind: Kind, vectors: Vectors) -> None:
        """Into a new collection, which takes the old one's place when it is whole: killed at any point, one of the two
        holds every record."""
        from chromadb.errors import NotFoundError

        rows = self.read(client, kind)
        old = client.get_collection(PREFIX + kind, embedding_function=None)
        with contextlib.suppress(NotFoundError):
            client.delete_collection(ANEW + kind)
        marks = {**(old.metadata or {}), **self._marks(kind)}
        anew = self._create(client, ANEW + kind, marks)
        for start in range(0, len(rows), PAGE):
            part = [row.record for row in rows[start : start + PAGE]]
            _put(anew, {record.id: record for record in part}, vectors(part))
        anew.modify(metadata={**marks, WHOLE: True})
        client.delete_collection(PREFIX + kind)
        anew.modify(name=PREFIX + kind)

    def _create(self, client: ClientAPI, name: str, marks: Mapping[str, str | int | float | bool | None]) -> Collection:
        return client.create_collection(
            name, metadata=dict(marks), embedding_function=None, configuration=CONFIGURATION, get_or_create=True
        )

    def seed_digest(self, client: ClientAPI) -> str:
        """Digest of the seed that was taken over, or empty."""
        return str((self._of(client, "directions").metadata or {}).get(SEED, ""))

    def set_seed_digest(self, client: ClientAPI, digest: str) -> None:
        """Marks that the seed of this digest was taken over whole."""
        self._of(client, "directions").modify(metadata={**self._marks("directions"), SEED: digest})

    def provenances(self, client: ClientAPI, kind: Kind) -> dict[str, str]:
        """Id -> provenance of every record of a kind."""
        found: dict[str, str] = {}
        collection = self._of(client, kind)
        while True:
            page = collection.get(limit=PAGE, offset=len(found), include=["metadatas"])
            metadatas = page["metadatas"] or []
            found |= {name: str(fields["provenance"]) for name, fields in zip(page["ids"], metadatas, strict=True)}
            if len(page["ids"]) < PAGE:
                return found

    def read(self, client: ClientAPI, kind: Kind, vectors: bool = False) -> list[Row]:
        """Every record of a kind, by pages, checked: as many as the database counts, each with the digest that it was
        written with.

        Raises StoreError naming the record when one is damaged, and when the number does not fit.
        """
        for _ in range(READS):
            collection = self._of(client, kind)
            rows: dict[str, Row] = {}
            offset, before = 0, collection.count()
            while page := self._page(collection, kind, offset, vectors):
                rows |= {row.record.id: row for row in page}
                offset += len(page)
            count = collection.count()
            if len(rows) == offset and before <= offset <= count:
                return list(rows.values())
        raise StoreError(
            f"{self.place[0].upper() + self.place[1:]} counts {count} {kind}, and {len(rows)} of them can be read.",
            "Nothing was changed. If others write at this moment, try again; else restore it from a copy, or begin "
            "anew with `htam memory reset`, which keeps the old folder.",
            "memory-corrupt",
        )

    def _page(self, collection: Collection, kind: Kind, offset: int, vectors: bool) -> list[Row]:
        page = collection.get(
            limit=PAGE,
            offset=offset,
            include=["documents", "metadatas", "embeddings"] if vectors else ["documents", "metadatas"],
        )
        embeddings = page["embeddings"] if vectors else None
        documents, metadatas = page["documents"] or [], page["metadatas"] or []
        rows: list[Row] = []
        for place, (name, document, fields) in enumerate(zip(page["ids"], documents, metadatas, strict=True)):
            record = parse(kind, name, document, (fields or {}).get(DIGEST), self.place)
            vector = None if embeddings is None else np.asarray(embeddings[place], dtype=np.float32)
            rows.append(Row(record, digest_of(document or ""), vector))
        return rows

    def upsert(
        self, client: ClientAPI, kind: Kind, records: Mapping[str, MemoryRecord], vectors: NDArray[np.float32]
    ) -> None:
        """Writes records with their vectors [len(records), dimension]; durable on return.

        Raises StoreError when another process has given the collection vectors of another embedder meanwhile.
        """
        collection = self._of(client, kind)
        self._check(kind, collection.metadata or {})
        _put(collection, records, vectors)

    def delete(self, client: ClientAPI, kind: Kind, names: Sequence[str]) -> None:
        """Removes records by id."""
        for start in range(0, len(names), PAGE):
            self._of(client, kind).delete(ids=list(names[start : start + PAGE]))

    def drop(self, client: ClientAPI) -> None:
        """Removes the four collections with all that they hold."""
        from chromadb.errors import NotFoundError

        for name in [prefix + kind for prefix in (PREFIX, ANEW) for kind in KINDS]:
            with contextlib.suppress(NotFoundError):
                client.delete_collection(name)

    def _of(self, client: ClientAPI, kind: Kind) -> Collection:
        return client.get_collection(PREFIX + kind, embedding_function=None)

    def _marks(self, kind: Kind) -> dict[str, str | int | float | bool | None]:
        return {SCHEMA: SCHEMA_VERSION, EMBEDDER: self._embedder[kind], DIMENSION: self._dimension[kind]}

    def _is_foreign(self, kind: Kind, found: Collection, alone: bool) -> bool:
        """Whether the vectors are another embedder's, and may be made anew. Raises StoreError where they may not."""
        marks = found.metadata or {}
        if alone and marks.get(SCHEMA) == SCHEMA_VERSION:
            return bool(marks.get(EMBEDDER) != self._embedder[kind] or marks.get(DIMENSION) != self._dimension[kind])
        self._check(kind, marks)
        return False

    def check_schema(self, client: ClientAPI) -> None:
        """Raises StoreError for a schema that this htam does not read, and when the database holds no memory."""
        from chromadb.errors import NotFoundError

        for kind in KINDS:
            try:
                _check_schema(kind, self._of(client, kind).metadata or {}, self.place)
            except NotFoundError as error:
                raise StoreError(
                    f"{self.place[0].upper() + self.place[1:]} holds no {kind} of a memory.",
                    "Give the place of a memory; `htam optimize --memory DIR` makes one.",
                    "memory-missing",
                ) from error

    def _check(self, kind: Kind, marks: Mapping[str, object]) -> None:
        _check_schema(kind, marks, self.place)
        embedder = marks.get(EMBEDDER)
        if embedder != self._embedder[kind]:
            raise StoreError(
                f"The {kind} in {self.place} have vectors of {embedder!r}, and {self._embedder[kind]!r} is in use.",
                "Use the same embedder as before, or carry the records into another memory (`htam memory export`, "
                "`import`); nothing was changed.",
                "memory-embedder",
            )


def _check_schema(kind: Kind, marks: Mapping[str, object], place: str) -> None:
    schema = marks.get(SCHEMA)
    if schema != SCHEMA_VERSION:
        raise StoreError(
            f"The {kind} in {place} have schema version {schema}, and this htam reads {SCHEMA_VERSION}.",
            "Use the htam that wrote it, or another memory, or begin anew with `htam memory reset`, which keeps the "
            "old folder; nothing was changed.",
            "memory-schema",
        )


def _put(collection: Collection, records: Mapping[str, MemoryRecord], vectors: NDArray[np.float32]) -> None:
    names = list(records)
    for start in range(0, len(names), PAGE):
        part = names[start : start + PAGE]
        documents = [records[name].model_dump_json() for name in part]
        collection.upsert(
            ids=part,
            embeddings=list(vectors[start : start + PAGE]),
            documents=documents,
            metadatas=[
                {**metadata_of(records[name]), DIGEST: digest_of(document)}
                for name, document in zip(part, documents, strict=True)
            ],
        )
