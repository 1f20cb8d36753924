"""Which part of the memory is worth what: every memory mode on the same chains of tasks, replayed from the plan table.

    python benchmarks/ablation.py [--table benchmarks/results/cpu-plan-table.jsonl] [--seeds 8]
                                  [--document docs/memory.md] [--from benchmarks/results/cpu-ablation.json]

The graph, its nodes, the memory store and the template coder are the real ones; the evaluator looks each plan up in the
table and fails where there is none. A chain is one memory over all tasks in an order that its seed decides, the same
for every mode. Deterministic: the same table and seeds give the same figures. Writes the result as JSON and the figures
of docs/memory.md. Also reported: how far single strategies, pairs and what was measured on the way explain the times in
the table (path dependence); without such dependence prefix and position cannot matter.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# Before numpy is imported: the matrices are small, and threads that wait for each other take longer than the work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.ablations.dependence import dependence  # noqa: E402
from benchmarks.ablations.replay import Link, replay_chain  # noqa: E402
from benchmarks.ablations.report import put_into  # noqa: E402
from benchmarks.ablations.statistics import MODES, summary  # noqa: E402
from benchmarks.plans.table import Table, operator_task  # noqa: E402
from htam_agent.memory.modes import MemoryMode  # noqa: E402

SCHEMA = "htam.ablation/1"
Job = tuple[Path, MemoryMode, int, int, list[str]]


def chain(job: Job) -> list[Link]:
    """One chain, in a process of the pool."""
    path, mode, seed, steps, tasks = job
    return replay_chain(Table.read(path), mode, seed, steps, tasks)


def run_chains(jobs: list[Job], processes: int) -> list[Link]:
    """All chains. A miss in the table ends everything."""
    links: list[Link] = []
    if processes == 1:
        return [link for job in jobs for link in chain(job)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for number, found in enumerate(pool.imap(chain, jobs), 1):
            links += found
            print(f"{number} of {len(jobs)} chains: {found[0].mode}, seed {found[0].seed}", file=sys.stderr, flush=True)
    return links


def ablate(
    path: Path, modes: list[MemoryMode], seeds: int, steps: int | None, processes: int
) -> tuple[dict[str, object], list[Link]]:
    """The whole result as plain values, and the runs. Exits when the table has no complete task."""
    table = Table.read(path)
    tasks = [name for name in table.complete() if operator_task(name).digest == table.tasks[name].digest]
    if not tasks or table.header is None:
        sys.exit(f"{path} has no complete task of the present operators: run benchmarks/plan_table.py.")
    left_out = sorted(table.tasks.keys() - set(tasks))
    steps = min(steps or table.header.steps, table.header.steps)
    links = run_chains([(path, mode, seed, steps, tasks) for seed in range(1, seeds + 1) for mode in modes], processes)
    result: dict[str, object] = {
        "schema": SCHEMA,
        "device": table.header.device.model_dump(mode="json"),
        "table": path.name,
        "steps": steps,
        "chains": seeds,
        "kernels": len(table.kernels),
        "tasks_left_out": left_out,
        "strategies": [strategy.id for strategy in table.header.strategies],
        "kernels_changed_since": sum(link.changed for link in links),
        "summary": summary(links, steps),
        "path_dependence": dependence(table),
    }
    return result, links


def print_table(result: dict[str, object]) -> None:
    """The figures after every step."""
    found, steps = result["summary"], result["steps"]
    assert isinstance(found, dict), "a summary is an object"
    assert isinstance(steps, int), "steps are counted"
    print(f"{'mode':14} {'step':>4} {'correct':>8} {'fast_1':>7} {'geomean':>8} {'interval':>16}  over full")
    for mode, cells in found["modes"].items():
        for step in range(1, steps + 1):
            cell = cells["by_step"][step - 1]
            mean = cell["geomean_kernel"] or math.nan
            low, high = cell["geomean_kernel_interval"] or (math.nan, math.nan)
            other = found["against_full"].get(mode)
            words = ""
            ratio = other[step - 1] if other else None
            if ratio and ratio["ratio"] is not None:
                words = f"{ratio['ratio']:.3f} [{ratio['interval'][0]:.3f}, {ratio['interval'][1]:.3f}]"
            print(
                f"{mode:14} {step:4} {cell['correct']:8.1%} {cell['fast_1']:7.1%} {mean:8.3f} "
                f"[{low:6.3f}, {high:6.3f}]  {words}"
            )
    print(json.dumps(result["path_dependence"], indent=1))


def written(path: Path) -> dict[str, object]:
    """The result of an earlier run. Exits when the file is none."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"{path} cannot be read: {error}. Run without --from to make it.")
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        sys.exit(f"{path} is no result of this benchmark. Run without --from to make one.")
    return result


def publish(result: dict[str, object], figures: Path, document: Path | None) -> list[Path]:
    """Prints the table, draws the figures, and puts both into the document where one is given."""
    from benchmarks.ablations.figures import draw

    print_table(result)
    files = draw(result, figures)
    if document:
        put_into(document, result, os.path.relpath(files[0], document.parent))
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, default=ROOT / "benchmarks/results/cpu-plan-table.jsonl")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/cpu-ablation.json")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs", help="folder of the figures")
    parser.add_argument("--document", type=Path, help="also put the tables between the marks of this document")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--seeds", type=int, default=8, help="chains of each mode, each with an order of its own")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--runs", type=Path, help="also write every run as a JSON line")
    parser.add_argument("--from", dest="earlier", type=Path, help="replay nothing: report this file of an earlier run")
    arguments = parser.parse_args()
    if arguments.earlier:
        publish(written(arguments.earlier), arguments.figures, arguments.document)
        return
    began = time.monotonic()
    result, links = ablate(arguments.table, arguments.modes, arguments.seeds, arguments.steps, arguments.processes)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if arguments.runs:
        arguments.runs.write_text("".join(json.dumps(link.row()) + "\n" for link in links), encoding="utf-8")
    files = publish(result, arguments.figures, arguments.document)
    print(f"{len(links)} runs in {time.monotonic() - began:.0f} s; {', '.join(map(str, files))}", file=sys.stderr)


if __name__ == "__main__":
    main()
