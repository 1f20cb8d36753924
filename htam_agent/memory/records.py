"""How each kind of record is stored: its JSON document, its text or vector, and its flat metadata for filters."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias, TypeVar, get_args

from pydantic import ValidationError

from htam_agent.errors import StoreError
from htam_agent.memory.index import strategy_text
from htam_agent.memory.model import Direction, Experience, Strategy, Transition

Kind = Literal["directions", "strategies", "transitions", "experiences"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MemoryRecord: TypeAlias = Direction | Strategy | Transition | Experience
Metadata: TypeAlias = dict[str, str | int | float | bool | None]

MODELS: dict[Kind, type[Direction] | type[Strategy] | type[Transition] | type[Experience]] = {
    "directions": Direction,
    "strategies": Strategy,
    "transitions": Transition,
    "experiences": Experience,
}


TURN = 500
"""Records written under one holding of the lock: about a second, of the half minute that others wait."""
TURN_SECONDS = 0.02
"""Between two turns: who waits asks for the lock every millisecond, and would not get it without a pause."""

T = TypeVar("T")


def in_turns(records: Mapping[str, T]) -> Iterator[dict[str, T]]:
    """The records in parts that are written one after the other, so that other processes get at the memory between."""
    names = list(records)
    for start in range(0, len(names), TURN):
        if start:
            time.sleep(TURN_SECONDS)
        yield {name: records[name] for name in names[start : start + TURN]}


def text_of(record: Direction | Strategy | Transition) -> str:
    """What a record's vector is made of."""
    if isinstance(record, Strategy):
        return strategy_text(record)
    if isinstance(record, Direction):
        return " ".join([record.title, record.intent, record.when])
    return " ".join([record.source, record.target, record.when, record.why, record.risk])


def metadata_of(record: MemoryRecord) -> Metadata:
    """Flat fields for the store's filters. Every record of a kind has the same keys (an upsert merges metadata)."""
    if isinstance(record, Experience):
        return {
            "run": record.run,
            "step": record.step,
            "task": record.task,
            "direction": record.direction,
            "strategy": record.strategy,
            "verdict": record.verdict,
            "backend": record.device.backend,
            "device": record.device.name,
            "created": record.created,
        }
    fields: Metadata = {"provenance": record.provenance}
    if isinstance(record, Strategy):
        fields |= {"direction": record.direction, "backend": record.backend}
    if isinstance(record, Transition):
        fields |= {"source": record.source, "target": record.target}
    return fields


DIGEST = "digest"
"""Key of a row's metadata: the digest of its document."""


def digest_of(document: str) -> str:
    """32 hexadecimal digits: what says that a document is the one that was written."""
    return hashlib.blake2b(document.encode(), digest_size=16).hexdigest()


def parse(kind: Kind, identifier: str, document: str | None, digest: object, place: str) -> MemoryRecord:
    """The record of a stored document. `digest` is the one that it was written with, None for one written before rows
    had digests.

    Raises StoreError naming the record when it does not fit its model, its id or its digest.
    """
    try:
        record = MODELS[kind].model_validate_json(document or "")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        if first["type"] == "extra_forbidden":
            raise StoreError(
                f"The record {identifier!r} among the {kind} in {place} was written by another version: it has "
                f"{where!r}, which this htam does not know.",
                "Use the htam that wrote it, or another memory (the setting `memory`); nothing was changed.",
                "memory-schema",
            ) from error
        raise _damaged(kind, identifier, place, f"{where}: {first['msg']}") from error
    if record.id != identifier:
        raise _damaged(kind, identifier, place, f"its document is of {record.id!r}")
    if digest is not None and digest != digest_of(document or ""):
        raise _damaged(kind, identifier, place, "its content is not what was written")
    return record


def _damaged(kind: Kind, identifier: str, place: str, what: str) -> StoreError:
    return StoreError(
        f"The record {identifier!r} among the {kind} in {place} is damaged ({what}).",
        "Nothing was changed. Restore the folder from a copy, give another one (the setting `memory`), or begin anew "
        "with `htam memory reset`, which keeps the old folder.",
        "memory-corrupt",
    )
