"""Runs of the real graph with the template coder against a small table of measured plans: no build, no clock."""

from __future__ import annotations

import functools
from pathlib import Path

from benchmarks.ablations.bench import TableBench
from benchmarks.plans.table import Table, operator_task
from htam_agent.coding.base import Coder
from htam_agent.coding.template import TemplateCoder
from htam_agent.graph.context import Context
from htam_agent.memory.seeding import Seed, load_seed
from htam_agent.memory.store import MemoryStore
from htam_agent.runs.records import RunOptions
from htam_agent.task import Task
from htam_agent.tools.registry import make_tools

TABLE = Path(__file__).resolve().parents[1] / "recordings" / "small-plan-table.jsonl"
ROWS = operator_task("row_maximum")
POINTWISE = operator_task("swish")


@functools.cache
def small_table() -> Table:
    """The table of two operators; not to be changed."""
    return Table.read(TABLE)


def table_memory(folder: Path) -> MemoryStore:
    """A store in `folder` whose strategies are those of the table."""
    header = small_table().header
    assert header is not None, "the recorded table has a header"
    shipped = load_seed()
    return MemoryStore.open(folder, seed=Seed(shipped.directions, tuple(header.strategies), shipped.transitions))


def open_table(task: Task, options: RunOptions, folder: Path) -> TableBench:
    """The evaluator of one task."""
    return TableBench(small_table(), task)


def table_context(folder: Path, memory: MemoryStore, options: RunOptions, coder: Coder | None = None) -> Context:
    """A context for the one run in `folder`."""
    return Context(
        options=options,
        memory=memory,
        coder=coder or TemplateCoder(memory.strategies),
        open_bench=open_table,
        make_tools=make_tools,
        runs=folder.parent,
        folder=folder,
    )
