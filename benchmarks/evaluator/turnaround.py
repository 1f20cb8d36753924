"""From source to verdict: cold, warm, and how steady the speedup is over repetitions.

For each of 20 KernelBench tasks: a bench is opened and measures its opponents (cold: that, and the first evaluation);
then the same kernel with a changed device text (warm: nothing is found built), with a changed file round the same
device text (warm: found built), and, for the ten tasks of the spread, again until there are ten results.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.evaluator.benches import add_options, changed, evaluate, facts_of, open_bench, prepare
from benchmarks.evaluator.items import Budget, Items, describe_machine
from benchmarks.evaluator.tasks import TAILS, TRACED

SPREAD = ("1/12", "1/40", "1/88", "2/12", "2/63", "1/23", "1/26", "1/38", "1/94", "2/70")
"""Tasks of every length: from a tenth of a millisecond to several."""
REPEATS = 10
ORDER = tuple(dict.fromkeys((*SPREAD[:5], *TAILS, *SPREAD[5:], *TRACED)))
EXPECTED_SECONDS = 24.0


def measure(arguments: argparse.Namespace, name: str) -> dict[str, object]:
    """All evaluations of one task in one bench."""
    path, kernel = prepare(arguments, name)
    work = arguments.work / "turnaround"
    began = time.monotonic()
    bench = open_bench(path, arguments.backend, work)
    with bench:
        opened = time.monotonic()
        bench.baselines()
        measured = time.monotonic()
        first, first_seconds, _ = evaluate(bench, changed(kernel, work, build=True))
        cold = time.monotonic() - began
        runs = []
        kinds = [True, False, *([False] * (REPEATS - 3) if name in SPREAD else [])]
        for build in kinds:
            result, seconds, cached = evaluate(bench, changed(kernel, work, build=build))
            runs.append({"seconds": seconds, "built": not cached, **facts_of(result)})
        operator = bench.operator
    return {
        "task": path.stem,
        "verdict": first.verdict,
        "reason": first.reason,
        "warm_built_s": runs[0]["seconds"],
        "warm_cached_s": runs[1]["seconds"],
        "cold_s": cold,
        "open_s": opened - began,
        "baselines_s": measured - opened,
        "unavoidable_bytes": operator.unavoidable_bytes,
        "first": {"seconds": first_seconds, **facts_of(first)},
        "runs": runs,
    }


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="h200_evaluator.py turnaround", description=__doc__)
    add_options(parser)
    parser.add_argument("--tasks", nargs="+", default=list(ORDER), help='as "level/number"')
    arguments = parser.parse_args(words)
    items = Items(arguments.out, "turnaround", arguments.earlier)
    open_tasks = [name for name in arguments.tasks if name not in items]
    print(f"turnaround: {len(open_tasks)} tasks, about {EXPECTED_SECONDS * len(open_tasks):.0f} s", flush=True)
    items.add_run(machine=describe_machine(arguments.backend), largest=arguments.largest)
    budget = Budget(arguments.budget_seconds)
    for name in budget.each(arguments.tasks, items, EXPECTED_SECONDS):
        try:
            items.add(name, **measure(arguments, name))
        except Exception as error:  # noqa: BLE001 - one task's failure is a result, not the end of the others
            items.add(name, verdict="error", reason=f"{type(error).__name__}: {error}")
