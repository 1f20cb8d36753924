"""How each kind of record is stored: its JSON document, its text or vector, and its flat metadata for filters."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

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


def parse(kind: Kind, identifier: str, document: str | None, place: str) -> MemoryRecord:
    """The record of a stored document. Raises StoreError naming the record when it does not fit its model."""
    try:
        return MODELS[kind].model_validate_json(document or "")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise StoreError(
            f"The record {identifier!r} among the {kind} in {place} is damaged ({where}: {first['msg']}).",
            "Nothing was changed. Restore the folder from a copy, or give another one (the setting `memory`).",
            "memory-corrupt",
        ) from error
