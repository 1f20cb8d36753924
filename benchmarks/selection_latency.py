"""How long selection takes in the process, without the store: one JSON object for each number of experiences.

    python benchmarks/selection_latency.py --experiences 10000 50000 --strategies 300

`select` scores the directions in a state never asked before, `retrieve` ranks the chosen direction's strategies in the
same state, `again` is what a coder asks later in the step, `add` puts one experience into the index. Milliseconds of
the clock and of the processor; where other programs run, the latter says more.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from htam_agent.memory.attention import score_directions
from htam_agent.memory.embed import HashingEmbedder
from htam_agent.memory.index import MemoryIndex
from htam_agent.memory.model import Experience, SelectionState, Strategy
from htam_agent.memory.retrieval import retrieve_strategies
from htam_agent.memory.seeding import load_seed
from htam_agent.operator import OperatorFeatures
from htam_agent.verdict import DeviceFacts

DEVICES = tuple(DeviceFacts(backend="cpp", name=f"CPU {number}", architecture="x86_64") for number in range(3))
CLASSES = ("pointwise", "reduction", "softmax", "normalization", "composite")
TASKS = 200
T = TypeVar("T")


def features(task: int) -> OperatorFeatures:
    """Of the operator of a task."""
    draw = random.Random(task)
    rows, columns = 2 ** draw.randint(8, 16), 2 ** draw.randint(6, 14)
    return OperatorFeatures.model_validate(
        {
            "operator_class": draw.choice(CLASSES), "dtype": "float32", "rows": rows, "columns": columns,
            "row_bytes": 4 * columns, "reductions": draw.randint(0, 3), "full_inputs": draw.randint(1, 3),
            "transcendentals": draw.randint(0, 3), "arithmetic_intensity": draw.uniform(0.1, 4.0),
            "unavoidable_bytes": 8 * rows * columns,
        }
    )  # fmt: skip


def experience(number: int, strategies: list[Strategy], directions: list[str]) -> Experience:
    """A step of random outcome, with any strategy in any state."""
    draw = random.Random(number)
    used, path = draw.choice(strategies), draw.choices(directions, k=draw.randint(0, 5))
    task = number % TASKS
    return Experience(
        id=f"benchmark:{number}", run=f"run-{number // 6}", step=len(path) + 1, candidate=0, task=f"task-{task}",
        features=features(task), precision="ieee", bottleneck=draw.choice(("memory", "compute", "latency")),
        prefix=tuple(path), prefix_outcomes=tuple(draw.uniform(-0.1, 0.5) for _ in path), steps_left=6 - len(path),
        direction=used.direction, strategy=used.id, verdict="correct", time_before_ms=8.0,
        time_after_ms=draw.uniform(2.0, 9.0), floor_ms=1.9, device=draw.choice(DEVICES),
    )  # fmt: skip


def state(number: int, directions: list[str]) -> SelectionState:
    """One that was not asked before."""
    draw = random.Random(f"state {number}")
    return SelectionState(
        task=f"task-{number % TASKS}", run="benchmark", backend="cpp", features=features(number % TASKS),
        operators=["aten.exp", "aten.sum"], device=DEVICES[0], bottleneck="memory", fraction_of_floor=0.4,
        prefix=tuple(draw.choices(directions, k=2)), prefix_outcomes=(0.2, -0.1), steps_left=4, seed=number,
    )  # fmt: skip


class Clock:
    """Collects the milliseconds of named pieces of work."""

    def __init__(self) -> None:
        self.clock: dict[str, list[float]] = {}
        self.processor: dict[str, list[float]] = {}

    def time(self, name: str, work: Callable[[], T]) -> T:
        clock, processor = time.perf_counter(), time.process_time()
        done = work()
        self.processor.setdefault(name, []).append(1e3 * (time.process_time() - processor))
        self.clock.setdefault(name, []).append(1e3 * (time.perf_counter() - clock))
        return done

    def summary(self) -> dict[str, dict[str, float]]:
        return {
            name: {
                "p50_ms": round(statistics.median(took), 3),
                "p95_ms": round(sorted(took)[int(0.95 * (len(took) - 1))], 3),
                "processor_p50_ms": round(statistics.median(self.processor[name]), 3),
            }
            for name, took in self.clock.items()
        }


def measure(experiences: int, strategies: int, times: int) -> dict[str, object]:
    """One size of memory."""
    seed = load_seed()
    known = list(seed.strategies)
    copies = range(max(0, strategies - len(known)))
    known += [known[i % len(known)].model_copy(update={"id": f"copy-{i}"}) for i in copies]
    names = sorted(direction.id for direction in seed.directions)
    index = MemoryIndex.of(HashingEmbedder(), seed.directions, known, seed.transitions)
    for number in range(experiences):
        index.evidence.add(experience(number, known, names))
    score_directions(state(-1, names), index)
    clock = Clock()
    for number in range(times):
        here = state(number, names)
        chosen = clock.time("select", lambda here=here: score_directions(here, index))[0].direction
        clock.time("retrieve", lambda here=here, chosen=chosen: retrieve_strategies(here, chosen, index))
        clock.time("again", lambda here=here, chosen=chosen: retrieve_strategies(here, chosen, index, limit=64))
        more = experience(experiences + number, known, names)
        clock.time("add", lambda more=more: index.evidence.add(more))
    return {"experiences": experiences, "strategies": len(known), **clock.summary()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiences", type=int, nargs="+", default=[10_000, 50_000])
    parser.add_argument("--strategies", type=int, default=300)
    parser.add_argument("--times", type=int, default=200)
    arguments = parser.parse_args()
    for experiences in arguments.experiences:
        print(json.dumps(measure(experiences, arguments.strategies, arguments.times)), flush=True)


if __name__ == "__main__":
    main()
