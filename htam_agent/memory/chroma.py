"""The four Chroma collections: their marks (schema, embedder, seed), paged reads and batched writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from htam_agent.errors import StoreError
from htam_agent.memory.model import SCHEMA_VERSION
from htam_agent.memory.records import KINDS, Kind, MemoryRecord, metadata_of, parse

if TYPE_CHECKING:
    from chromadb.api import ClientAPI
    from chromadb.api.collection_configuration import CreateCollectionConfiguration
    from chromadb.api.models.Collection import Collection

PAGE = 1000
"""Records of one read or write: Chroma refuses batches beyond 5461 and unpaged reads beyond some 30,000."""

PREFIX = "htam-"
SCHEMA, EMBEDDER, DIMENSION, SEED = "htam_schema", "htam_embedder", "htam_dimension", "htam_seed"

# With Chroma's defaults a query misses one neighbour in seven among 10,000 records, with these one in two hundred;
# wider ones cost more on every write. Our own search is exact and does without: this index is for whoever queries the
# database directly.
CONFIGURATION: CreateCollectionConfiguration = {
    "hnsw": {"space": "cosine", "max_neighbors": 32, "ef_construction": 200, "ef_search": 200}
}


class Collections:
    """Reads and writes records; the client comes from the caller, who holds the database meanwhile."""

    def __init__(
        self, place: str, embedders: Mapping[Kind, str], dimensions: Mapping[Kind, int], default: tuple[str, int]
    ) -> None:
        """`embedders` and `dimensions` for the kinds that do not have those of `default`."""
        self.place = place
        self._embedder = {kind: embedders.get(kind, default[0]) for kind in KINDS}
        self._dimension = {kind: dimensions.get(kind, default[1]) for kind in KINDS}

    def prepare(self, client: ClientAPI) -> None:
        """Makes the collections that are missing, after the marks of those that exist were found to fit.

        Raises StoreError for a newer schema and for another embedder, before anything is written.
        """
        from chromadb.errors import NotFoundError

        missing: list[Kind] = []
        for kind in KINDS:
            try:
                found = client.get_collection(PREFIX + kind, embedding_function=None)
            except NotFoundError:
                missing.append(kind)
            else:
                self._check(kind, found.metadata or {})
        for kind in missing:
            client.create_collection(
                PREFIX + kind,
                metadata=self._marks(kind),
                embedding_function=None,
                configuration=CONFIGURATION,
                get_or_create=True,
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

    def read(
        self, client: ClientAPI, kind: Kind, vectors: bool = False
    ) -> Iterator[tuple[MemoryRecord, NDArray[np.float32] | None]]:
        """Every record of a kind, with its vector [dimension] if asked for.

        Raises StoreError naming the record when one does not fit its model.
        """
        collection = self._of(client, kind)
        offset = 0
        while True:
            page = collection.get(
                limit=PAGE, offset=offset, include=["documents", "embeddings"] if vectors else ["documents"]
            )
            embeddings = page["embeddings"] if vectors else None
            for row, (name, document) in enumerate(zip(page["ids"], page["documents"] or [], strict=True)):
                vector = None if embeddings is None else np.asarray(embeddings[row], dtype=np.float32)
                yield parse(kind, name, document, self.place), vector
            offset += len(page["ids"])
            if len(page["ids"]) < PAGE:
                return

    def upsert(
        self, client: ClientAPI, kind: Kind, records: Mapping[str, MemoryRecord], vectors: NDArray[np.float32]
    ) -> None:
        """Writes records with their vectors [len(records), dimension]; durable on return."""
        collection = self._of(client, kind)
        names = list(records)
        for start in range(0, len(names), PAGE):
            part = names[start : start + PAGE]
            collection.upsert(
                ids=part,
                embeddings=list(vectors[start : start + PAGE]),
                documents=[records[name].model_dump_json() for name in part],
                metadatas=[metadata_of(records[name]) for name in part],
            )

    def delete(self, client: ClientAPI, kind: Kind, names: Sequence[str]) -> None:
        """Removes records by id."""
        for start in range(0, len(names), PAGE):
            self._of(client, kind).delete(ids=list(names[start : start + PAGE]))

    def _of(self, client: ClientAPI, kind: Kind) -> Collection:
        return client.get_collection(PREFIX + kind, embedding_function=None)

    def _marks(self, kind: Kind) -> dict[str, str | int | float | bool | None]:
        return {SCHEMA: SCHEMA_VERSION, EMBEDDER: self._embedder[kind], DIMENSION: self._dimension[kind]}

    def _check(self, kind: Kind, marks: Mapping[str, object]) -> None:
        schema, embedder = marks.get(SCHEMA), marks.get(EMBEDDER)
        if schema != SCHEMA_VERSION:
            raise StoreError(
                f"The {kind} in {self.place} have schema version {schema}, and this htam reads {SCHEMA_VERSION}.",
                "Use the htam that wrote it, or another memory; nothing was changed.",
                "memory-schema",
            )
        if embedder != self._embedder[kind]:
            raise StoreError(
                f"The {kind} in {self.place} have vectors of {embedder!r}, and {self._embedder[kind]!r} is in use.",
                "Use the same embedder as before, or another memory; nothing was changed.",
                "memory-embedder",
            )
