"""Memory modes: the whole memory, or the whole memory with one part taken away, so that each part can be measured."""

from __future__ import annotations

from typing import Literal

MemoryMode = Literal[
    "full", "no-hierarchy", "no-local", "random", "no-prefix", "no-position", "no-update", "none",
]  # fmt: skip
"""What of the memory a run uses.

- `full`: everything.
- `no-hierarchy`: flat retrieval. All applicable strategies stand in one list by similarity and measured record; there
  are no directions, transitions or path. For the record, the direction of a step is its strategy's.
- `no-local`: a direction is chosen, its local memory is not. A model is given the direction alone; the template coder
  takes a uniform, seeded draw among the direction's applicable strategies.
- `random`: direction and strategies are uniform, seeded draws among those that apply. A model is shown what their
  author wrote, and no pitfalls that were learned from measurements.
- `no-prefix`: the path so far is ignored: which directions were taken, how many, and what they closed. The kernel at
  hand, what was tried and the steps left remain.
- `no-position`: every step of the path weighs the same.
- `no-update`: nothing that this run measures enters the memory or is read from it.
- `none`: feedback alone. A model is given no direction and no strategy; the template coder takes a uniform, seeded draw
  among all applicable strategies.
"""


def uses_path(mode: MemoryMode) -> bool:
    """Whether the steps taken so far weigh in: their directions, their number and what they closed."""
    return mode not in ("no-prefix", "no-hierarchy")


def weighs_position(mode: MemoryMode) -> bool:
    """Whether nearer steps of the path weigh more than those further back."""
    return mode != "no-position"


def is_flat(mode: MemoryMode) -> bool:
    """Whether all strategies stand in one list, whatever their direction."""
    return mode in ("no-hierarchy", "none")


def draws_directions(mode: MemoryMode) -> bool:
    """Whether the direction is a uniform draw."""
    return mode in ("random", "none")


def draws_strategies(mode: MemoryMode) -> bool:
    """Whether the order of strategies is a uniform draw."""
    return mode in ("no-local", "random", "none")
