"""What the memory costs: opening, one update, selection with retrieval, and growth. One JSON object.

    python benchmarks/memory_latency.py --experiences 10000 50000 --strategies 300 --out FILE

For each number of experiences a memory is made, filled and measured in a process of its own, so that its resident
memory is its own. `start_up_s` is a whole fresh process that opens the full memory and scores once, Python's start and
all imports included. Times of the clock and, where other programs run, of the processor. On two quiet cores 10,000
take about a minute and 50,000 about five.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from htam_agent.memory.attention import score_directions  # noqa: E402
from htam_agent.memory.model import Experience, SelectionState, Strategy  # noqa: E402
from htam_agent.memory.retrieval import retrieve_strategies  # noqa: E402
from htam_agent.memory.store import MemoryStore  # noqa: E402
from htam_agent.operator import OperatorFeatures  # noqa: E402
from htam_agent.verdict import DeviceFacts  # noqa: E402

DEVICE = DeviceFacts(backend="cpp", name="benchmark", architecture="x86_64")
CLASSES = ("pointwise", "reduction", "softmax", "normalization", "composite")
TARGETS = {"select_and_retrieve_p50_ms": 5.0, "update_p50_ms": 40.0, "start_up_s": 3.0}
"""With 10,000 experiences and 300 strategies."""

START = """
import sys
from pathlib import Path
from benchmarks.memory_latency import state
from htam_agent.memory.attention import score_directions
from htam_agent.memory.store import MemoryStore
with MemoryStore.open(Path(sys.argv[1])) as store:
    assert score_directions(state(0), store)
"""


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
        id=f"benchmark:{number}:0:0",
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


def state(number: int) -> SelectionState:
    """Another one for each number."""
    return SelectionState(
        backend="cpp", features=features(random.Random(number)), operators=["aten.exp"], device=DEVICE,
        bottleneck="memory", prefix=("memory-access", "data-reuse"), prefix_outcomes=(0.2, 0.1), steps_left=3,
        seed=number,
    )  # fmt: skip


def milliseconds(work: Callable[[int], object], times: int) -> dict[str, float]:
    """Median and 95th percentile of `times` calls by the clock, and the processor's mean."""
    took = []
    processor = time.process_time()
    for number in range(times):
        started = time.perf_counter()
        work(number)
        took.append(1e3 * (time.perf_counter() - started))
    processor = 1e3 * (time.process_time() - processor) / times
    p50, p95 = statistics.median(took), sorted(took)[int(0.95 * (times - 1))]
    return {"p50_ms": round(p50, 3), "p95_ms": round(p95, 3), "processor_ms": round(processor, 3)}


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measured(experiences: int, strategies: int) -> dict[str, object]:
    """One size, in this process."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "memory"
        store, first = opened(folder)
        store.close()
        store, again = opened(folder)
        known = list(store.strategies.values())
        copies = range(max(0, strategies - len(known)))
        store.add_strategies([known[i % len(known)].model_copy(update={"id": f"copy-{i}"}) for i in copies])
        usable, names = list(store.strategies.values()), sorted(store.directions)
        empty = disk_bytes(folder)
        records = [experience(i, draw, usable, names) for i in range(experiences)]
        started = time.perf_counter()
        store.add_experiences(records)
        bulk = time.perf_counter() - started
        del records

        def select(number: int) -> object:
            asked = state(number)
            return retrieve_strategies(asked, score_directions(asked, store)[0].direction, store)

        select(-1)
        selecting = milliseconds(select, 200)
        new = [experience(10**6 + number, draw, usable, names) for number in range(100)]
        updating = milliseconds(lambda number: store.add_experience(new[number]), len(new))
        store.close()
        disk = disk_bytes(folder)
        before = resident_bytes()
        store, full = opened(folder)
        index = resident_bytes() - before
        store.close()
        return {
            "experiences": experiences,
            "strategies": len(store.strategies),
            "select_and_retrieve": selecting,
            "update": updating,
            "open_new_s": round(first, 3),
            "open_seeded_s": round(again, 3),
            "open_full_s": round(full, 3),
            "start_up_s": round(start_up(folder), 3),
            "bulk_insert_s": round(bulk, 2),
            "disk_bytes": disk,
            "disk_bytes_per_experience": round((disk - empty) / (experiences + len(new))),
            "resident_bytes_of_a_second_index": index,
            "resident_bytes_per_experience": round(index / (experiences + len(new))),
        }


def opened(folder: Path) -> tuple[MemoryStore, float]:
    """The store, and the seconds that opening took."""
    started = time.perf_counter()
    return MemoryStore.open(folder), time.perf_counter() - started


def start_up(folder: Path) -> float:
    """Median seconds of three fresh processes that open the memory and score once."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", START, str(folder)], check=True, cwd=ROOT, env=environment)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def within(result: dict[str, object]) -> dict[str, bool]:
    """Which of the targets are met."""
    assert isinstance(result["select_and_retrieve"], dict)
    assert isinstance(result["update"], dict)
    found = {
        "select_and_retrieve_p50_ms": result["select_and_retrieve"]["p50_ms"],
        "update_p50_ms": result["update"]["p50_ms"],
        "start_up_s": result["start_up_s"],
    }
    return {name: bool(found[name] < limit) for name, limit in TARGETS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiences", type=int, nargs="+", default=[10_000])
    parser.add_argument("--strategies", type=int, default=300, help="In all; copies are added to the seed's.")
    parser.add_argument("--out", type=Path, help="Also write the result there.")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.experiences[0], given.strategies)))
        return
    sizes: list[dict[str, object]] = []
    for count in given.experiences:
        command = [sys.executable, __file__, "--one", "--experiences", str(count)]
        command += ["--strategies", str(given.strategies)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        sizes.append(json.loads(done.stdout.splitlines()[-1]))
    numbers = " ".join(map(str, given.experiences))
    result = {
        "schema": "htam.memory-latency/1",
        "command": f"python benchmarks/memory_latency.py --experiences {numbers} --strategies {given.strategies}",
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "targets": TARGETS,
        "within": within(sizes[0]),
        "sizes": sizes,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
