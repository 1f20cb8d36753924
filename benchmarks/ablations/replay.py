"""Chains of runs: one memory, task after task, as in use. The graph, its nodes, the memory and the template coder are
the real ones; the evaluator is the table."""

from __future__ import annotations

import random
import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.ablations.bench import TableBench
from benchmarks.plans.table import Table, operator_task
from htam_agent.coding.template import TemplateCoder
from htam_agent.graph.build import build_graph
from htam_agent.graph.context import Context
from htam_agent.graph.runner import recursion_limit
from htam_agent.memory.modes import MemoryMode
from htam_agent.memory.seeding import Seed, load_seed
from htam_agent.memory.store import MemoryStore
from htam_agent.runs.records import Result, RunOptions
from htam_agent.task import Task
from htam_agent.tools.registry import make_tools
from htam_agent.verdict import Interval, RunResult


@dataclass(frozen=True)
class Link:
    """One run of a chain. Lists have an entry for each step of the budget; after the run's end the last one stays."""

    mode: MemoryMode
    seed: int
    place: int
    """Position of the task in the chain, from 0."""
    task: str
    speedups: list[float | None]
    """Of the best correct kernel so far over the reference; None: none yet."""
    lows: list[float | None]
    """Lower ends of the intervals of the same."""
    returned: bool
    """Whether the run gave back a kernel: one that is not slower than the original."""
    directions: list[str] = field(default_factory=list)
    strategies: list[str] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    reason: str = ""
    changed: int = 0

    def row(self) -> dict[str, object]:
        """As plain values."""
        return asdict(self)


def order_of(tasks: list[str], seed: int) -> list[str]:
    """The chain's order: the seed decides, the mode does not, so that modes are compared on the same chains."""
    return random.Random(f"order {seed}").sample(sorted(tasks), len(tasks))


def replay_chain(table: Table, mode: MemoryMode, seed: int, steps: int, tasks: list[str]) -> list[Link]:
    """The runs of one chain, in order. Raises TableMiss."""
    assert table.header is not None, "a table that was measured has a header"
    shipped = load_seed()
    seed_records = Seed(shipped.directions, tuple(table.header.strategies), shipped.transitions)
    with (
        tempfile.TemporaryDirectory(prefix="htam-ablation-") as folder,
        closing(MemoryStore.open(Path(folder) / "memory", seed=seed_records)) as memory,
    ):
        coder = TemplateCoder(memory.strategies)
        return [
            replay(table, memory, coder, mode, seed, place, name, steps, Path(folder))
            for place, name in enumerate(order_of(tasks, seed))
        ]


def replay(
    table: Table,
    memory: MemoryStore,
    coder: TemplateCoder,
    mode: MemoryMode,
    seed: int,
    place: int,
    name: str,
    steps: int,
    folder: Path,
) -> Link:
    """One run of the graph. Raises TableMiss."""
    benches: list[TableBench] = []

    def open_bench(task: Task, options: RunOptions, scratch: Path) -> TableBench:
        benches.append(TableBench(table, task))
        return benches[-1]

    context = Context(
        # Seeds of a run's steps are neighbours: chains and places keep far apart.
        options=RunOptions(backend="cpp", steps=steps, memory_mode=mode, seed=1_000_000 * seed + 1_000 * place),
        memory=memory,
        coder=coder,
        open_bench=open_bench,
        make_tools=make_tools,
        runs=folder / "runs",
        folder=folder / "runs" / f"{mode}-{seed}-{place:02d}-{name}",
    )
    limit = {"recursion_limit": recursion_limit(context)}
    result: Result = build_graph().compile().invoke({"task": operator_task(name)}, limit, context=context)["result"]
    speedups, lows = course(result, steps)
    return Link(
        mode=mode,
        seed=seed,
        place=place,
        task=name,
        speedups=speedups,
        lows=lows,
        returned=result.kernel is not None,
        directions=[step.direction for step in result.steps],
        strategies=[step.strategy for step in result.steps],
        verdicts=[step.verdict for step in result.steps],
        reason=result.reason,
        changed=sum(bench.changed for bench in benches),
    )


def course(result: Result, steps: int) -> tuple[list[float | None], list[float | None]]:
    """Speedup and lower end of the interval of the best kernel after each step."""
    best: tuple[float, float | None] | None = None
    speedups: list[float | None] = []
    lows: list[float | None] = []
    for number in range(1, steps + 1):
        for step in result.steps:
            for candidate in step.candidates if step.step == number else []:
                found = candidate.speedup.best
                if candidate.verdict == "correct" and found is not None and (best is None or found > best[0]):
                    interval = _interval(Path(result.run) / candidate.folder)
                    best = found, interval.low if interval else None
        speedups.append(best[0] if best else None)
        lows.append(best[1] if best else None)
    return speedups, lows


def _interval(folder: Path) -> Interval | None:
    return RunResult.model_validate_json((folder / "run.json").read_text(encoding="utf-8")).interval
