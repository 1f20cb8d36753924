"""What people and scripts see of a memory: counts, lists, single records, and a drawing of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from htam_agent.errors import StoreError
from htam_agent.memory.graph_facts import GraphFacts
from htam_agent.memory.model import START, Direction, Experience, Strategy, Transition
from htam_agent.memory.records import KINDS, Kind, MemoryRecord
from htam_agent.plain_text import plain_line
from htam_agent.words import Backend, Record

if TYPE_CHECKING:
    from htam_agent.memory.store import MemoryStore

Schema = Literal["htam.memory/1"]


class MemoryStats(Record):
    """What `htam memory stats --json` prints: number of records of each kind."""

    schema_: Schema = Field("htam.memory/1", alias="schema", serialization_alias="schema")
    directions: int
    strategies: int
    transitions: int
    experiences: int


class MemoryLine(Record):
    """One record in a list. `backend` is null for what belongs to no backend; `provenance` is null for experiences."""

    kind: Kind
    id: str
    summary: str
    backend: Backend | None = None
    provenance: Literal["seed", "user", "learned"] | None = None


class MemoryList(Record):
    """What `htam memory list --json` prints."""

    schema_: Schema = Field("htam.memory/1", alias="schema", serialization_alias="schema")
    records: list[MemoryLine]


class MemoryShown(Record):
    """What `htam memory show ID --json` prints."""

    schema_: Schema = Field("htam.memory/1", alias="schema", serialization_alias="schema")
    kind: Kind
    record: Direction | Strategy | Transition | Experience


class MemoryDrawing(Record):
    """What `htam memory graph --json` prints."""

    schema_: Schema = Field("htam.memory/1", alias="schema", serialization_alias="schema")
    mermaid: str
    out: str | None = None
    """The file that the picture was written to; null when none was asked for."""


class MemoryExported(Record):
    """What `htam memory export --json` prints."""

    schema_: Schema = Field("htam.memory/1", alias="schema", serialization_alias="schema")
    pack: str
    counts: dict[Kind, int]
    sha256: str
    """Of the pack's records, as its header has it."""


class MemoryRemoved(Record):
    """What `htam memory remove --json` prints."""

    schema_: Schema = Field("htam.memory/1", alias="schema", serialization_alias="schema")
    removed: list[str]
    restored: list[str]
    """Those of the seed that a removed one had overridden."""


def stats(store: MemoryStore) -> MemoryStats:
    """Number of records of each kind."""
    counts = store.counts()
    return MemoryStats(
        directions=counts["directions"],
        strategies=counts["strategies"],
        transitions=counts["transitions"],
        experiences=counts["experiences"],
    )


def listing(store: MemoryStore, kind: Kind | None = None, backend: Backend | None = None) -> MemoryList:
    """A line for each record, by kind and id; `backend` leaves out the strategies and experiences of another one."""
    lines = [_line(each, record) for each in KINDS if kind in (None, each) for record in store.records(each)]
    return MemoryList(records=[line for line in lines if backend is None or line.backend in (None, backend)])


def show(store: MemoryStore, identifier: str) -> MemoryShown:
    """The record of this id. Raises StoreError when there is none."""
    for kind in KINDS:
        for record in store.records(kind):
            if record.id == identifier:
                return MemoryShown(kind=kind, record=record)
    message = f"There is no record {identifier!r} in {store.place}."
    raise StoreError(message, "See `htam memory list` for what there is.", "memory-unknown")


def mermaid(facts: GraphFacts) -> str:
    """The Hierarchical Transition Graph as Mermaid: directions with their number of strategies, transitions with their
    prior, and with the measured mean share where there is one (thick edges)."""
    owned = [strategy.direction for strategy in facts.strategies]
    lines = ["flowchart LR", f"    {START}([start])"]
    lines += [f'    {one.id}["{_label(one.title)}<br/>{owned.count(one.id)} strategies"]' for one in facts.directions]
    for edge in facts.transitions:
        told = [f"{edge.prior:.2f}"] if edge.prior is not None else []
        if edge.measured.share is not None:
            told.append(f"measured {edge.measured.share:+.2f} ({edge.measured.steps})")
        arrow = "==>" if edge.measured.steps else "-->"
        lines.append(f'    {edge.source} {arrow}|"{", ".join(told)}"| {edge.target}')
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    """Text inside a quoted label: Mermaid's own entities for what would end the label or be read as HTML."""
    return "".join(f"#{ord(sign)};" if sign in '"<>&#`' else sign for sign in plain_line(text))


def _line(kind: Kind, record: MemoryRecord) -> MemoryLine:
    if isinstance(record, Experience):
        times = f"{record.time_before_ms:.4g} ms -> " + (
            f"{record.time_after_ms:.4g} ms" if record.time_after_ms is not None else "none"
        )
        summary = f"{record.direction} / {record.strategy} on {record.task}: {record.verdict}, {times}"
        return MemoryLine(kind=kind, id=record.id, summary=summary, backend=record.device.backend)
    if isinstance(record, Strategy):
        summary, backend = f"{record.direction}: {record.title}", record.backend
        return MemoryLine(kind=kind, id=record.id, summary=summary, backend=backend, provenance=record.provenance)
    if isinstance(record, Transition):
        summary = f"{record.prior:+.2f} {record.when}"
        return MemoryLine(kind=kind, id=record.id, summary=summary, provenance=record.provenance)
    return MemoryLine(kind=kind, id=record.id, summary=record.intent, provenance=record.provenance)
