"""The first loop on KernelBench level 1: run the agent on nine memory-bound operators and record every step.

    python benchmarks/h200_first_loop.py --kernelbench DIR --out benchmarks/results/h200-first-loop.json

`--kernelbench` is a checkout of ScalingIntelligence/KernelBench. The script is resumable: each finished task is
appended to the result file, a task under way goes on from its checkpoints, and `--budget-seconds` ends the script
before a limit does; run the same command again to go on. A ratio comes from one run on one machine only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from htam_agent.graph.events import Event

TASKS = (19, 23, 24, 25, 30, 38, 39, 40, 88)


def find_task(checkout: Path, number: int) -> Path:
    """The file of a level-1 task."""
    found = sorted((checkout / "KernelBench" / "level1").glob(f"{number}_*.py"))
    if not found:
        sys.exit(f"There is no level-1 task {number} in {checkout}: give a checkout of KernelBench.")
    return found[0]


def load_results(path: Path) -> dict[str, object]:
    """The result file so far, or an empty one."""
    if path.exists():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {"schema": "htam.first-loop/1", "items": {}, "failures": {}}


def write_results(path: Path, results: dict[str, object]) -> None:
    """Replace the result file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def geometric_mean(values: list[float]) -> float | None:
    """The geometric mean; null for no values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def summarise(items: dict[str, dict[str, object]], failures: dict[str, str], wanted: int) -> dict[str, object]:
    """Counts and means over the tasks. Means are over tasks with a kernel; `coverage` says how many of all those are.

    A task whose original runs at the floor keeps the original: it counts as correct, and in no mean.
    """
    kernels = {name: item for name, item in items.items() if item["kernel"]}
    speedup = {name: item["speedup"] for name, item in kernels.items()}
    best = {name: value["best"] for name, value in speedup.items() if value["best"]}
    eager = [value["eager"] for value in speedup.values() if value["eager"]]
    return {
        "tasks": wanted,
        "finished": len(items),
        "failed_to_run": sorted(failures),
        "correct": sum(item["verdict"] in ("correct", "at-floor") for item in items.values()),
        "with_kernel": len(kernels),
        "faster": sum(bool(item["faster"]) for item in items.values()),
        "geomean_over_best": geometric_mean(list(best.values())),
        "geomean_over_eager": geometric_mean(eager),
        "coverage": f"{len(kernels)} of {wanted}",
        "at_floor": sorted(name for name, item in items.items() if item["verdict"] == "at-floor"),
        "loses_to_best": sorted(name for name, value in best.items() if value < 1.0),
        "median_step_seconds": {
            name: sorted(step["seconds"] for step in item["steps"])[len(item["steps"]) // 2]
            for name, item in items.items()
            if item["steps"]
        },
    }


def run_task(path: Path, folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """One task through the whole agent, or on from its checkpoints."""
    from htam_agent.api import optimize, resume
    from htam_agent.cli.progress import progress_line

    def listen(event: Event) -> None:
        print(progress_line(event), flush=True)

    settings = {"memory": arguments.memory, "seed": arguments.seed}
    if (folder / "run.json").exists():
        result = resume(str(folder), listen=listen, **settings)
    else:
        result = optimize(
            str(path), listen=listen, out=folder, steps=arguments.steps, backend=arguments.backend, **settings
        )
    item = json.loads(result.to_json())
    for private in ("source", "run"):
        item.pop(private, None)
    item["kernel"] = bool(result.kernel)
    item["kernel_source"] = Path(result.kernel).read_text(encoding="utf-8") if result.kernel else None
    return item


def describe_machine() -> dict[str, object]:
    """Where the numbers come from."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernelbench", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200-first-loop.json"))
    parser.add_argument("--runs", type=Path, default=Path("htam-runs/first-loop"))
    parser.add_argument("--memory", type=Path, default=Path("htam-runs/first-loop-memory"))
    parser.add_argument("--tasks", type=int, nargs="+", default=TASKS)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget-seconds", type=float, default=540.0)
    arguments = parser.parse_args()

    started, results = time.monotonic(), load_results(arguments.out)
    items = results["items"]
    failures = results.setdefault("failures", {})
    assert isinstance(items, dict), "the result file holds its items by task number"
    assert isinstance(failures, dict), "the result file holds its failures by task number"
    results["command"] = "python " + " ".join(sys.argv).replace(str(arguments.kernelbench), "DIR")
    results["machine"] = describe_machine()
    longest = 0.0
    for number in arguments.tasks:
        if str(number) in items:
            continue
        if time.monotonic() - started + longest > arguments.budget_seconds:
            print("the budget is used up; run the same command again to go on", flush=True)
            break
        began = time.monotonic()
        path = find_task(arguments.kernelbench, number)
        try:
            item = run_task(path, arguments.runs / path.stem, arguments)
        except Exception as error:  # noqa: BLE001 - one task's failure is a recorded result, not the end of the others
            print(f"{path.stem}: {type(error).__name__}: {error}", flush=True)
            failures[str(number)] = f"{type(error).__name__}: {error}"
            results["summary"] = summarise(items, failures, len(arguments.tasks))
            write_results(arguments.out, results)
            continue
        failures.pop(str(number), None)
        item["wall_seconds"] = round(time.monotonic() - began, 2)
        items[str(number)] = item
        longest = max(longest, time.monotonic() - began)
        results["summary"] = summarise(items, failures, len(arguments.tasks))
        write_results(arguments.out, results)
    print(json.dumps(results.get("summary"), indent=1))


if __name__ == "__main__":
    main()
