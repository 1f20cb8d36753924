"""What a record must keep to enter a memory, whichever way it comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import ValidationError

from htam_agent.errors import StoreError
from htam_agent.memory.model import START, Direction, Experience, Strategy, Transition
from htam_agent.memory.records import MemoryRecord
from htam_agent.memory.share import share_closed

T = TypeVar("T", bound=Direction | Strategy | Transition | Experience)


def by_id(records: Iterable[T]) -> dict[str, T]:
    """Id -> record. Raises StoreError when two have one id."""
    found: dict[str, T] = {}
    for record in records:
        if record.id in found:
            raise StoreError(
                f"Two of the given records have the id {record.id!r}; nothing was stored.",
                "Rename one, or leave one out.",
                "memory-duplicate",
            )
        found[record.id] = record
    return found


def check_experience(record: Experience, directions: Mapping[str, Direction]) -> None:
    """Raises StoreError for an unknown direction, for a path with other than one outcome a step (or none at all), and
    for a time that is not a positive, finite number."""
    _check_direction(record, record.direction, directions)
    if len(record.prefix_outcomes) not in (0, len(record.prefix)):
        raise StoreError(
            f"The experience {record.id!r} has {len(record.prefix_outcomes)} outcomes for the {len(record.prefix)} "
            "steps of its path; nothing was stored.",
            "Give one for each step, oldest first, or none.",
            "memory-invalid",
        )
    try:
        share_closed(record.time_before_ms, record.time_after_ms, record.floor_ms)
    except ValueError as error:
        message = f"The experience {record.id!r} is not stored: {error}"
        raise StoreError(message, "Measure the step again.", "memory-invalid") from error


def check_record(record: MemoryRecord, directions: Mapping[str, Direction]) -> None:
    """Raises StoreError when the record names a direction that is not among `directions`, or an impossible time."""
    check_readable(record)
    if isinstance(record, Experience):
        check_experience(record, directions)
    elif isinstance(record, Strategy):
        _check_direction(record, record.direction, directions)
    elif isinstance(record, Transition):
        for end in {record.source, record.target} - {START}:
            _check_direction(record, end, directions)


def check_readable(record: MemoryRecord) -> None:
    """Raises StoreError when the document that would be written does not say what the record says: one such document
    makes the whole memory unreadable. A number that is not finite becomes null, and nested facts may hold one."""
    try:
        again = type(record).model_validate_json(record.model_dump_json())
        problem = "" if again == record else "what would be written reads otherwise"
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if problem:
        raise StoreError(
            f"The {type(record).__name__.lower()} {record.id!r} cannot be stored ({problem}); nothing was stored.",
            "Every number of it must be finite and within its bounds; mend it or leave it out.",
            "memory-invalid",
        )


def _check_direction(record: MemoryRecord, name: str, directions: Mapping[str, Direction]) -> None:
    if name not in directions:
        raise StoreError(
            f"The {type(record).__name__.lower()} {record.id!r} is of no direction {name!r} that this memory has; "
            "nothing was stored.",
            f"Known are: {', '.join(sorted(directions))}.",
            "memory-unknown",
        )
