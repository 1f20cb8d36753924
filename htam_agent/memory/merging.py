"""Merging: records of a pack or of another memory enter this one, each counted once.

Ids are idempotent (an experience's names run, step, candidate and attempt), so that what is known already is passed
over, and merging twice changes nothing. All records are checked before the first is written, and each part again under
the lock: another process may have written meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from htam_agent.errors import StoreError
from htam_agent.memory.chroma import Collections
from htam_agent.memory.connection import DATABASE
from htam_agent.memory.model import Direction, Experience, Strategy
from htam_agent.memory.records import KINDS, Kind, MemoryRecord, in_turns
from htam_agent.memory.rules import by_id, check_record
from htam_agent.memory.sharing import connect_folder, connect_server, disconnect
from htam_agent.words import Record

if TYPE_CHECKING:
    from htam_agent.memory.store import MemoryStore

Conflicts = Literal["refuse", "keep", "replace"]
"""What to do about an id that both have, with different content."""

Records = Mapping[Kind, Sequence[MemoryRecord]]


class MergeReport(Record):
    """What `htam memory import` and `merge` print with --json: numbers of records by kind."""

    schema_: Literal["htam.memory/1"] = Field("htam.memory/1", alias="schema", serialization_alias="schema")
    source: str
    added: dict[Kind, int]
    known: dict[Kind, int]
    """The memory had them already, or an equal record of its seed."""
    kept: dict[Kind, int]
    """The memory has another record of the id, which stays."""
    replaced: dict[Kind, int]
    seed: dict[Kind, int]
    """Records of a seed that this htam's seed does not hold so: left out, its own seed decides."""
    notes: list[str] = Field(default_factory=list)


def merge(
    store: MemoryStore,
    records: Records,
    source: str,
    *,
    conflicts: Conflicts = "refuse",
    check: Callable[[Sequence[Strategy]], list[str]] | None = None,
) -> MergeReport:
    """Takes the records into `store`. `check` looks at the strategies that would enter and answers with notes; it
    raises StoreError for a wrong one.

    Raises StoreError naming the record: an id twice among the records, an unknown direction, an impossible time, or a
    conflict with the memory where `conflicts` is "refuse". Nothing is then written, unless another process wrote the
    conflicting record while this one was writing (the message says so).
    """
    store.refresh()
    entering = _sorted_out(store, records, conflicts)["strategies"].entering.values()
    strategies = [one for one in entering if isinstance(one, Strategy)]
    notes = check(strategies) if check is not None and strategies else []
    store.refresh()  # the check may have taken long
    sorted_out = _sorted_out(store, records, conflicts)
    for kind, group in sorted_out.items():
        group.put(store, kind, conflicts)
    return MergeReport(
        schema_="htam.memory/1",
        source=source,
        added={kind: len(group.entering) - group.replaced for kind, group in sorted_out.items()},
        known={kind: group.known for kind, group in sorted_out.items()},
        kept={kind: group.kept for kind, group in sorted_out.items()},
        replaced={kind: group.replaced for kind, group in sorted_out.items()},
        seed={kind: group.seed for kind, group in sorted_out.items()},
        notes=notes,
    )


def _sorted_out(store: MemoryStore, records: Records, conflicts: Conflicts) -> dict[Kind, _Sorted]:
    known_directions = {**store.directions, **_as_directions(records.get("directions", ()))}
    found = {kind: _Sorted(store, kind, records.get(kind, ()), conflicts) for kind in KINDS}
    for group in found.values():
        for record in group.entering.values():
            check_record(record, known_directions)
    return found


class _Sorted:
    """The given records of one kind: what enters, and how many do not, and why."""

    def __init__(
        self, store: MemoryStore, kind: Kind, given: Sequence[MemoryRecord], conflicts: Conflicts, begun: bool = False
    ) -> None:
        self.entering: dict[str, MemoryRecord] = {}
        self.known = self.kept = self.replaced = self.seed = 0
        mine = {record.id: record for record in store.records(kind)}
        for name, record in by_id(given).items():
            here = mine.get(name)
            if here is not None and _same(here, record):
                self.known += 1
            elif _provenance(record) == "seed":
                self.seed += 1
            elif here is None:
                self.entering[name] = record
            elif conflicts == "replace":
                self.entering[name] = record
                self.replaced += 1
            elif conflicts == "keep":
                self.kept += 1
            else:
                raise _conflict(kind, name, store.place, begun)

    def put(self, store: MemoryStore, kind: Kind, conflicts: Conflicts) -> None:
        """Writes what enters, each part looked at again where nobody else can write; the numbers then say what was
        done."""
        given, self.entering, self.replaced = self.entering, {}, 0
        for part in in_turns(given):
            with store.held():
                now = _Sorted(store, kind, list(part.values()), conflicts, begun=True)
                store.put(kind, now.entering)
            self.entering |= now.entering
            self.known += now.known
            self.kept += now.kept
            self.replaced += now.replaced


def _conflict(kind: Kind, name: str, place: str, begun: bool) -> StoreError:
    done = "another process wrote it meanwhile, and some records are stored" if begun else "nothing was stored"
    return StoreError(
        f"The record {name!r} among the {kind} is in {place} with other content; {done}.",
        "Say which one holds: --conflicts keep (the memory's) or --conflicts replace (the given one).",
        "memory-conflict",
    )


def _same(mine: MemoryRecord, given: MemoryRecord) -> bool:
    """Equal but for the time of writing: a step that was replayed is the same step."""
    if isinstance(mine, Experience) and isinstance(given, Experience):
        return mine.model_copy(update={"created": given.created}) == given
    return mine == given


def _provenance(record: MemoryRecord) -> str:
    return "learned" if isinstance(record, Experience) else record.provenance


def _as_directions(records: Sequence[MemoryRecord]) -> dict[str, Direction]:
    """Those that will be in the memory: a seed's direction that this seed lacks will not."""
    return {one.id: one for one in records if isinstance(one, Direction) and one.provenance != "seed"}


def read_memory(place: str, wait_seconds: float) -> Records:
    """Every record of another memory, a folder or a server's URL, which is left as it is (its seed included).

    Raises StoreError when there is none, or it is damaged or of another version.
    """
    if place.startswith(("http://", "https://")):
        connection = connect_server(place)
    elif (Path(place) / DATABASE).is_file():
        connection = connect_folder(Path(place), wait_seconds)
    else:
        raise StoreError(
            f"There is no memory and no pack at {place!r}.",
            "Give the folder of a memory, the URL of a Chroma server, or a pack (`htam memory export`).",
            "memory-missing",
        )
    try:
        collections = Collections(connection.place, {}, {}, default=("", 0))
        with connection.exclusive() as client:
            collections.check_schema(client)
            return {kind: [row.record for row in collections.read(client, kind)] for kind in KINDS}
    finally:
        disconnect(connection)
