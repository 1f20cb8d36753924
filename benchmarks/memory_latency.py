"""How long the memory takes: opening, one update, selection with retrieval. Prints one JSON object.

python benchmarks/memory_latency.py --experiences 10000 --strategies 300
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from htam_agent.memory.attention import score_directions
from htam_agent.memory.model import Experience, SelectionState, Strategy
from htam_agent.memory.retrieval import retrieve_strategies
from htam_agent.memory.store import MemoryStore
from htam_agent.operator import OperatorFeatures
from htam_agent.verdict import DeviceFacts

DEVICE = DeviceFacts(backend="cpp", name="benchmark", architecture="x86_64")
CLASSES = ("pointwise", "reduction", "softmax", "normalization", "composite")


def features(draw: random.Random) -> OperatorFeatures:
    """Of an operator of random class and shape."""
    rows, columns = 2 ** draw.randint(4, 16), 2 ** draw.randint(5, 18)
    return OperatorFeatures.model_validate(
        {
            "operator_class": draw.choice(CLASSES),
            "dtype": "float32",
            "rows": rows,
            "columns": columns,
            "row_bytes": 4 * columns,
            "reductions": draw.randint(0, 3),
            "full_inputs": draw.randint(1, 3),
            "transcendentals": draw.randint(0, 3),
            "arithmetic_intensity": draw.uniform(0.1, 4.0),
            "unavoidable_bytes": 8 * rows * columns,
        }
    )


def experience(number: int, draw: random.Random, strategies: list[Strategy], directions: list[str]) -> Experience:
    """A step of random outcome."""
    used = draw.choice(strategies)
    return Experience(
        id=f"benchmark:{number}:0",
        run="benchmark",
        step=number,
        candidate=0,
        task=f"task-{number % 200}",
        features=features(draw),
        precision="ieee",
        bottleneck=draw.choice(("memory", "compute", "latency", "unknown")),
        prefix=tuple(draw.choices(directions, k=draw.randint(0, 5))),
        direction=used.direction,
        strategy=used.id,
        verdict=draw.choice(("correct", "correct", "correct", "failed")),
        time_before_ms=8.0,
        time_after_ms=draw.uniform(2.0, 9.0),
        floor_ms=1.9,
        device=DEVICE,
    )


def milliseconds(work: Callable[[int], object], times: int) -> dict[str, float]:
    """Median and 95th percentile of `times` calls."""
    took = []
    for number in range(times):
        started = time.perf_counter()
        work(number)
        took.append(1e3 * (time.perf_counter() - started))
    return {"p50_ms": statistics.median(took), "p95_ms": sorted(took)[int(0.95 * (times - 1))]}


def opened(folder: Path) -> tuple[MemoryStore, float]:
    """The store, and the seconds that opening took."""
    started = time.perf_counter()
    return MemoryStore.open(folder), time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiences", type=int, default=10_000)
    parser.add_argument(
        "--strategies", type=int, default=300, help="Strategies in all; copies are added to the seed's."
    )
    arguments = parser.parse_args()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "memory"
        store, first = opened(folder)
        store.close()
        store, again = opened(folder)
        known = list(store.strategies.values())
        copies = range(max(0, arguments.strategies - len(known)))
        store.add_strategies([known[i % len(known)].model_copy(update={"id": f"copy-{i}"}) for i in copies])
        usable, names = list(store.strategies.values()), sorted(store.directions)
        started = time.perf_counter()
        store.add_experiences([experience(i, draw, usable, names) for i in range(arguments.experiences)])
        bulk = time.perf_counter() - started

        def select(number: int) -> object:
            state = SelectionState(
                backend="cpp", features=features(draw), operators=["aten.exp"], device=DEVICE, bottleneck="memory",
                prefix=("memory-access", "data-reuse"), prefix_outcomes=(0.2, 0.1), steps_left=3, seed=number,
            )  # fmt: skip
            return retrieve_strategies(state, score_directions(state, store)[0].direction, store)

        result = {
            "experiences": arguments.experiences,
            "strategies": len(store.strategies),
            "open_new_s": first,
            "open_seeded_s": again,
            "bulk_insert_s": bulk,
            "update": milliseconds(
                lambda number: store.add_experience(experience(10**6 + number, draw, usable, names)), 100
            ),
            "select_and_retrieve": milliseconds(select, 200),
            "disk_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        }
        store.close()
        store, result["open_full_s"] = opened(folder)
        store.close()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
