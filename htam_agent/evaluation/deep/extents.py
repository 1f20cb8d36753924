"""Which other shapes of a task's inputs are tried: plain numbers, no tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from htam_agent.words import Record


class Resize(Record):
    """Inputs whose shared first extent becomes `leading` and, where `last` is set, their shared last one that.

    `leading` may exceed the task's own by drawing twice; `last` never does. `members`: the inputs (by position) whose
    first extent changes, `last_members` those whose last one does.
    """

    label: str
    leading: int
    members: tuple[int, ...]
    last: int | None = None
    last_members: tuple[int, ...] = ()


class Extents:
    """The shapes of a task's tensors. `item_bytes`: bytes of one element of each. `alone`: only the first input has its
    extents changed (the other factor of a square product keeps its own), instead of all that share them."""

    def __init__(self, shapes: Sequence[Sequence[int]], item_bytes: Sequence[int], *, alone: bool = False) -> None:
        self._shapes = [tuple(shape) for shape in shapes]
        self._items = list(item_bytes)
        first = next((shape for shape in self._shapes if shape), ())
        self.leading = first[0] if first else 0
        self.last = first[-1] if len(first) > 1 else 0
        self.members = tuple(i for i, shape in enumerate(self._shapes) if shape and shape[0] == self.leading)
        self.last_members = tuple(
            i for i, shape in enumerate(self._shapes) if len(shape) > 1 and shape[-1] == self.last
        )
        self.shared = len(self.members) > 1
        """Whether several inputs share the first extent."""
        if alone:
            self.members, self.last_members = self.members[:1], self.last_members[:1]
        self._of = " of the first input" if alone else ""

    def bytes_at(self, leading: int) -> int:
        """Bytes of all inputs when the shared first extent is `leading`."""
        total = 0
        for index, (shape, item) in enumerate(zip(self._shapes, self._items, strict=True)):
            extents = (leading, *shape[1:]) if index in self.members else shape
            total += math.prod(extents) * item
        return total

    def largest(self, limit: int) -> int:
        """The largest first extent, up to the task's own, whose inputs fit into `limit` bytes; 0 for none."""
        if self.leading < 1 or self.bytes_at(0) > limit:
            return 0
        row = self.bytes_at(1) - self.bytes_at(0)
        return self.leading if row == 0 else min(self.leading, (limit - self.bytes_at(0)) // row)

    def small(self, elements: int) -> int:
        """The first extent at which the inputs that have it hold about `elements` elements: at least 1."""
        row = sum(math.prod(self._shapes[index][1:]) for index in self.members)
        return max(1, min(self.leading, elements // max(row, 1)))

    def others(self, limit: int, *, last: bool) -> list[Resize]:
        """First extents other than the task's own: one more, one less, just over half, one; with `last` the last extent
        shortened by one besides. Inputs that exceed `limit` bytes make way for the largest that fit."""
        base = self.largest(limit)
        if base < 1:
            return []
        wanted = [base + 1, base - 1, base // 2 + 1, 1]
        found = [self._resize(n) for n in dict.fromkeys(wanted) if n >= 1 and n != self.leading]
        if last and self.last > 1:
            found.append(
                Resize(
                    label=f"last extent {self.last - 1} instead of {self.last}{self._of}",
                    leading=base,
                    members=self.members,
                    last=self.last - 1,
                    last_members=self.last_members,
                )
            )
        return found

    def _resize(self, leading: int) -> Resize:
        label = f"first extent {leading} instead of {self.leading}{self._of}"
        return Resize(label=label, leading=leading, members=self.members)
