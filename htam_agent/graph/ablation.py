"""What the memory mode of a run withholds from its coder, and what a step's direction is where none was chosen.

How modes rank and draw is the memory's business (memory/modes.py, attention.py, retrieval.py). Here is the rest: a chat
model is not told what an ablation takes away, and nothing is learned where nothing may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from htam_agent.memory.modes import is_flat

if TYPE_CHECKING:
    from htam_agent.graph.context import Context
    from htam_agent.memory.model import Direction
    from htam_agent.runs.records import RunOptions


def shows_direction(options: RunOptions) -> bool:
    """Whether the coder is told the direction. A template coder takes strategies alone and is told in any case."""
    return not (options.coder == "model" and options.memory_mode == "none")


def shows_strategies(options: RunOptions) -> bool:
    """Whether the coder is shown strategies. A template coder cannot write without; it gets a seeded uniform draw where
    a model gets none."""
    return not (options.coder == "model" and options.memory_mode in ("no-local", "none"))


def learns(options: RunOptions) -> bool:
    """Whether what this run measures enters the memory."""
    return options.memory_mode != "no-update"


def told_direction(context: Context, direction: str) -> Direction | None:
    """The direction as the coder is told it. Raises StoreError when the memory has none of this name."""
    return context.memory.direction(direction) if shows_direction(context.options) else None


def direction_of(context: Context, direction: str, strategy: str) -> str:
    """The direction that a step is recorded under: its strategy's where directions were not chosen between, none for
    a model that was told none, else the one chosen."""
    if not shows_direction(context.options):
        return ""
    known = context.memory.strategies.get(strategy)
    return known.direction if known is not None and is_flat(context.options.memory_mode) else direction
