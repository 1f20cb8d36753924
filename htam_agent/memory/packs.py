"""Packs: the records of a memory as a JSONL file, to carry them to another one.

The first line is the header (PackHeader), each further line one record: `{"kind": ..., "record": {...}}`, by kind and
id. Vectors are not in it: whoever takes the records makes them with its own embedder. What the seed holds is left out
unless asked for, since every htam has its own seed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError

from htam_agent.errors import StoreError
from htam_agent.memory.files import unwritable
from htam_agent.memory.model import SCHEMA_VERSION
from htam_agent.memory.records import KINDS, MODELS, Kind, MemoryRecord
from htam_agent.memory.vector import VECTOR_VERSION
from htam_agent.version import __version__
from htam_agent.words import Record

if TYPE_CHECKING:
    from htam_agent.memory.store import MemoryStore

SCHEMA: Literal["htam.memory-pack/1"] = "htam.memory-pack/1"
START_OF_PACK = b'{"schema":"htam.memory-pack/'
"""Of every version: the header's first key."""


class PackHeader(Record):
    """The first line of a pack."""

    schema_: Literal["htam.memory-pack/1"] = Field(SCHEMA, alias="schema", serialization_alias="schema")
    records: int
    """Version of the records' models (model.SCHEMA_VERSION)."""
    embedder: str
    """Of the memory that the pack was made from."""
    state_vector: str
    counts: dict[Kind, int]
    sha256: str
    """Of all bytes after the header's line."""
    version: str
    """Of htam_agent."""
    created: str
    """UTC, ISO 8601."""


class PackLine(Record):
    """Any further line; `record` is checked against the model of its kind."""

    kind: Kind
    record: dict[str, object]


def write_pack(store: MemoryStore, path: Path, kinds: Sequence[Kind] = KINDS, *, seed: bool = False) -> PackHeader:
    """Writes the records of these kinds to `path`; `seed`: those of the seed too. The file appears whole or not at all.

    Raises StoreError when the file cannot be written, or holds something that is no pack.
    """
    _check_target(path)
    chosen = {kind: [one for one in store.records(kind) if seed or not _of_seed(one)] for kind in kinds}
    lines = [
        json.dumps({"kind": kind, "record": record.model_dump(mode="json")}, separators=(",", ":"), allow_nan=False)
        for kind, records in chosen.items()
        for record in records
    ]
    body = "".join(line + "\n" for line in lines).encode()
    header = PackHeader(
        schema_=SCHEMA,
        records=SCHEMA_VERSION,
        embedder=store.texts.embedder.id,
        state_vector=VECTOR_VERSION,
        counts={kind: len(records) for kind, records in chosen.items()},
        sha256=hashlib.sha256(body).hexdigest(),
        version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(header.model_dump_json(by_alias=True).encode() + b"\n" + body)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise unwritable("pack", path, error) from error
    return header


def _check_target(path: Path) -> None:
    """Only an older pack or an empty file is written over. Raises StoreError."""
    try:
        if not path.exists():
            return
        if path.is_file():
            with path.open("rb") as file:
                start = file.read(len(START_OF_PACK))
            if start in (b"", START_OF_PACK):
                return
    except OSError as error:
        raise unwritable("pack", path, error) from error
    raise _error(
        f"{str(path)!r} is there and is no pack; it was left as it is.",
        "Give another path, or move what is there away.",
        "memory-pack-target",
    )


def read_pack(path: Path) -> tuple[PackHeader, dict[Kind, list[MemoryRecord]]]:
    """The header and the records by kind, all checked against header and models.

    Raises StoreError: not a pack, of another version, changed since it was written, or a record that does not fit.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _error(f"The pack {str(path)!r} cannot be read: {error.strerror}.", "Check the path.") from error
    first, _, body = data.partition(b"\n")
    header = _header(path, first)
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise _error(
            f"The pack {str(path)!r} is not the one that was written: its SHA-256 differs from the header's.",
            "Copy it again, or export it anew.",
            "memory-pack-damaged",
        )
    records: dict[Kind, list[MemoryRecord]] = {kind: [] for kind in KINDS}
    for number, line in enumerate(body.splitlines(), start=2):
        kind, record = _record(path, number, line)
        records[kind].append(record)
    counts = {kind: len(records[kind]) for kind in header.counts}
    if counts != header.counts or sum(counts.values()) != sum(map(len, records.values())):
        raise _error(
            f"The pack {str(path)!r} holds {counts}, and its header says {header.counts}.",
            "Export it anew.",
            "memory-pack-damaged",
        )
    return header, records


def _of_seed(record: MemoryRecord) -> bool:
    return getattr(record, "provenance", None) == "seed"


def _header(path: Path, line: bytes) -> PackHeader:
    try:
        found = json.loads(line)
        schema = found.get("schema") if isinstance(found, dict) else None
    except ValueError:
        schema = None
    if schema is None:
        raise _error(f"{str(path)!r} is no pack: its first line is no header.", "Make one with `htam memory export`.")
    if schema != SCHEMA:
        raise _error(
            f"The pack {str(path)!r} is of the form {schema!r}, and this htam reads {SCHEMA!r}.",
            "Use the htam that wrote it, or export it with this one.",
            "memory-pack-schema",
        )
    try:
        header = PackHeader.model_validate_json(line)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise _error(f"The header of the pack {str(path)!r} is wrong ({where}: {problem['msg']}).", "") from error
    if header.records != SCHEMA_VERSION:
        raise _error(
            f"The records of the pack {str(path)!r} have version {header.records}, and this htam reads "
            f"{SCHEMA_VERSION}.",
            "Use the htam that wrote it, or export it with this one.",
            "memory-pack-schema",
        )
    return header


def _record(path: Path, number: int, line: bytes) -> tuple[Kind, MemoryRecord]:
    try:
        given = PackLine.model_validate_json(line)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise _error(f"Line {number} of the pack {str(path)!r} is no record ({problem}).", "Export it anew.") from error
    try:
        return given.kind, MODELS[given.kind].model_validate_json(json.dumps(given.record))
    except ValidationError as error:
        problems = error.errors()[0]
        where = ".".join(map(str, problems["loc"])) or "the record"
        name = given.record.get("id") or f"{given.record.get('source')}->{given.record.get('target')}"
        raise _error(
            f"The record {name!r} in line {number} of the pack {str(path)!r} does not fit ({where}: "
            f"{problems['msg']}).",
            "Mend or leave it out, and export the pack anew.",
        ) from error


def _error(message: str, remedy: str, code: str = "memory-pack") -> StoreError:
    return StoreError(message, remedy or "Make one with `htam memory export`.", code)
