"""The plan of a template kernel, and the typed edit with which a strategy changes it.

A plan says *how* an operator is computed; what is computed comes from the traced graph. Every field is a knob that a
skeleton reads. `blocks` names, for each slot of the skeleton, the strategy whose Jinja block fills it: an optimisation
that is not in the memory can therefore not be rendered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import Field

from htam_agent.words import Backend, Record

Mapping = Literal["flat", "thread-row", "warp-row", "block-row", "cluster-row", "split-row"]
"""How rows meet workers. cuda: flat (grid-stride over all elements), a thread, a warp, a block or a thread-block
cluster for each row, or several blocks for each row with partial results in memory. cpp: flat and block-row mean
an OpenMP thread for a range of elements or of rows; split-row shares one row among the threads."""

Staging = Literal["none", "registers", "shared"]
"""Where a row waits between passes: read again from memory, kept in registers, or kept in shared memory (cpp: none,
or `shared` for a per-thread row buffer that stays in the cache)."""

Passes = Literal["multi", "online"]
"""`multi`: one pass for each dependent reduction; `online`: running statistics in one pass (online softmax, Welford or
shifted sums)."""

Tail = Literal["scalar", "mask", "peel"]
"""How row ends that are no multiple of the vector width are handled."""


class Plan(Record):
    """A complete plan. `strategies` is the path: ids in the order in which they were applied."""

    backend: Backend
    mapping: Mapping = "block-row"
    staging: Staging = "none"
    passes: Passes = "multi"
    tail: Tail = "scalar"
    threads: int = Field(256, ge=1, le=1024)
    """cuda: threads of a block. cpp: ignored (the machine's threads are used on both sides)."""
    vector_width: int = Field(1, ge=1, le=16)
    """Elements moved by one access."""
    rows_per_block: int = Field(1, ge=1, le=64)
    unroll: int = Field(1, ge=1, le=32)
    cluster_size: int = Field(1, ge=1, le=16)
    splits: int = Field(1, ge=1, le=4096)
    persistent: bool = False
    fast_math: bool = False
    blocks: dict[str, str] = Field(default_factory=dict)
    """slot -> id of the strategy whose block fills it."""
    strategies: tuple[str, ...] = ()

    def apply(self, strategy: str, edit: PlanEdit, slot: str | None, more: Iterable[str] = ()) -> Plan:
        """The plan after one strategy: the edit's set fields replace this plan's, its blocks fill `slot` and `more`."""
        changes: dict[str, object] = edit.model_dump(exclude_none=True)
        slots = [*([slot] if slot else []), *more]
        changes["blocks"] = {**self.blocks, **dict.fromkeys(slots, strategy)}
        changes["strategies"] = (*self.strategies, strategy)
        return Plan.model_validate({**self.model_dump(), **changes})


class PlanEdit(Record):
    """The fields that a strategy sets; the rest stay as they are."""

    mapping: Mapping | None = None
    staging: Staging | None = None
    passes: Passes | None = None
    tail: Tail | None = None
    threads: int | None = None
    vector_width: int | None = None
    rows_per_block: int | None = None
    unroll: int | None = None
    cluster_size: int | None = None
    splits: int | None = None
    persistent: bool | None = None
    fast_math: bool | None = None

    def merged(self, other: Self) -> PlanEdit:
        """This edit with `other`'s set fields on top."""
        return PlanEdit.model_validate({**self.model_dump(exclude_none=True), **other.model_dump(exclude_none=True)})


Plan.model_rebuild()
