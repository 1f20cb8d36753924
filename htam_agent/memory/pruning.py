"""Pruning: experiences that may go, by age, device, task or verdict, or because they say least.

An experience is worth the less, the more newer ones there are of the same step: same task, device, strategy, path and
verdict. The n-th newest of such a group changes the weighted mean of the group by about 1 / n, so that dropping the
highest n first, and among equals the oldest, changes what selection expects as little as can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from htam_agent.errors import UsageError
from htam_agent.memory.model import Experience
from htam_agent.words import Record, StepVerdict

if TYPE_CHECKING:
    from htam_agent.memory.store import MemoryStore


MOST_DAYS = 36_500.0
"""A hundred years: before the first of all memories, and still a date that Python can say."""


class PruneRule(Record):
    """Which experiences may go: those that fit every field that is set, and of those, with `keep`, only the ones that
    say least, until `keep` experiences are left in the memory."""

    older_than_days: float | None = None
    """0 to MOST_DAYS. One whose date is unknown is not older."""
    device: str | None = None
    """A device's name, an architecture ("sm_90") or a backend, as a whole."""
    task: str | None = None
    """A task's id, or its name (the id without the content's hash)."""
    verdict: StepVerdict | None = None
    keep: int | None = Field(None, ge=0)


class PruneReport(Record):
    """What `htam memory prune` prints with --json."""

    schema_: Literal["htam.memory/1"] = Field("htam.memory/1", alias="schema", serialization_alias="schema")
    done: bool
    """False: a dry run, nothing was removed."""
    experiences: int
    """In the memory before."""
    going: list[str]
    """Ids, those that say least first."""
    by_verdict: dict[str, int]
    by_device: dict[str, int]
    by_task: dict[str, int]


def prune(store: MemoryStore, rule: PruneRule, *, dry_run: bool = True, now: datetime | None = None) -> PruneReport:
    """Removes what the rule names, or with `dry_run` only says what would go.

    Raises UsageError when the rule is empty (that would be a reset), or its days are no number of days.
    """
    if not rule.model_dump(exclude_none=True):
        raise UsageError(
            "Nothing was said about which experiences may go.",
            "Give --older-than, --device, --task, --verdict or --keep; `htam memory reset` begins anew.",
            "memory-prune",
        )
    # Put so that what is not a number is refused as well.
    if rule.older_than_days is not None and not 0.0 <= rule.older_than_days <= MOST_DAYS:
        raise UsageError(
            f"{rule.older_than_days:g} is no age in days.", f"Give 0 to {MOST_DAYS:g} days.", "memory-prune"
        )
    store.refresh()
    records = list(store.experiences)
    going = chosen(records, rule, now or datetime.now(UTC))
    if not dry_run:
        store.remove("experiences", [record.id for record in going])
    return PruneReport(
        schema_="htam.memory/1",
        done=not dry_run,
        experiences=len(records),
        going=[record.id for record in going],
        by_verdict=_counted([record.verdict for record in going]),
        by_device=_counted([record.device.name for record in going]),
        by_task=_counted([record.task for record in going]),
    )


def chosen(records: Sequence[Experience], rule: PruneRule, now: datetime) -> list[Experience]:
    """The experiences that the rule names, those that say least first."""
    ranks = _ranks(records)
    fitting = [record for record in records if _fits(record, rule, now)]
    fitting.sort(key=lambda record: (-ranks[record.id], record.created, record.id))
    return fitting if rule.keep is None else fitting[: max(0, len(records) - rule.keep)]


def _ranks(records: Sequence[Experience]) -> dict[str, int]:
    """Id -> how many newer experiences there are of the same step."""
    groups: dict[tuple[object, ...], list[Experience]] = {}
    for record in records:
        key = (record.task, record.device.name, record.precision, record.strategy, record.prefix, record.verdict)
        groups.setdefault(key, []).append(record)
    ranks: dict[str, int] = {}
    for group in groups.values():
        group.sort(key=lambda record: (record.created, record.id), reverse=True)
        ranks |= {record.id: rank for rank, record in enumerate(group)}
    return ranks


def _fits(record: Experience, rule: PruneRule, now: datetime) -> bool:
    device = record.device
    return (
        (rule.older_than_days is None or _is_older(record.created, now - timedelta(days=rule.older_than_days)))
        and (rule.device is None or rule.device in (device.name, device.architecture, device.backend))
        and (rule.task is None or rule.task in (record.task, record.task.rpartition("-")[0]))
        and (rule.verdict is None or rule.verdict == record.verdict)
    )


def _is_older(created: str, limit: datetime) -> bool:
    try:
        made = datetime.fromisoformat(created)
    except ValueError:
        return False
    return (made if made.tzinfo else made.replace(tzinfo=UTC)) < limit


def _counted(words: Sequence[str]) -> dict[str, int]:
    return {word: words.count(word) for word in sorted(set(words))}
