"""Against KernelBench's own `eval_kernel_against_ref` (5 correctness trials, 100 timed runs), on the same file.

Seconds of its call alone, in a fresh process whose CUDA has started, against ours from source to verdict on an open
bench (strict, the device text new each time, so that the build counts) and ours from nothing (the bench opened too).
The file in load_inline's form is evaluated twice by both: the second time its build is found.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.evaluator.benches import add_options, changed, evaluate, facts_of, open_bench, prepare
from benchmarks.evaluator.inline import INLINE_GELU
from benchmarks.evaluator.items import Budget, Items, describe_machine
from benchmarks.evaluator.shrinking import place_task
from benchmarks.evaluator.tasks import task_file

EXPECTED = {"1/40": 45.0, "2/12": 45.0, "1/26": 180.0, "1/23": 180.0, "1/36": 200.0, "inline 1/88": 230.0}
"""Seconds for each, the cheap ones first."""
CHILD = Path(__file__).with_name("kernelbench_child.py")


def by_kernelbench(arguments: argparse.Namespace, task: Path, kernel: Path) -> dict[str, object]:
    """What KernelBench's evaluator said, and how long it took."""
    answer = arguments.work / "kernelbench-answer.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, str(CHILD), "--src", str(arguments.src or arguments.kernelbench / "src")]
    command += ["--task", str(task), "--kernel", str(kernel), "--answer", str(answer)]
    command += ["--build", str(arguments.work / "kernelbench-build")]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        process.wait(arguments.child_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return {"error": f"it took longer than {arguments.child_seconds:g} s", "process_s": time.monotonic() - began}
    if not answer.exists():
        return {"error": f"its process ended with {process.returncode}", "process_s": time.monotonic() - began}
    return {**json.loads(answer.read_text()), "process_s": time.monotonic() - began}


def by_us(arguments: argparse.Namespace, task: Path, kernel: Path, *, inline: bool) -> dict[str, object]:
    """The same file by this evaluator: from nothing, then on the open bench."""
    from htam_agent.evaluation.bench import Limits

    work = arguments.work / "versus"
    began = time.monotonic()
    bench = open_bench(task, arguments.backend, work, compiled=False)
    bench.limits = Limits(build_seconds=300.0)
    with bench:
        bench.baselines()
        opened = time.monotonic() - began
        first, seconds, _ = evaluate(bench, kernel if inline else changed(kernel, work, build=True))
        cold = time.monotonic() - began
        runs = []
        for _ in range(1 if inline else 3):
            again = kernel if inline else changed(kernel, work, build=True)
            result, taken, _ = evaluate(bench, again)
            runs.append({"seconds": taken, **facts_of(result)})
    return {
        "verdict": first.verdict,
        "reason": first.reason,
        "cold_s": cold,
        "open_s": opened,
        "first": {"seconds": seconds, **facts_of(first)},
        "warm_s": statistics.median(run["seconds"] for run in runs),
        "runs": runs,
    }


def compare(arguments: argparse.Namespace, key: str) -> dict[str, object]:
    """One file by both, ours first."""
    inline = key.startswith("inline ")
    name = key.removeprefix("inline ")
    if inline:
        task = place_task(task_file(arguments.kernelbench, name), arguments.work / "tasks", arguments.largest)
        kernel = arguments.work / "inline.py"
        kernel.write_text(INLINE_GELU, encoding="utf-8")
    else:
        task, kernel = prepare(arguments, name)
    ours = by_us(arguments, task, kernel, inline=inline)
    theirs = by_kernelbench(arguments, task, kernel)
    again = by_kernelbench(arguments, task, kernel) if inline and "error" not in theirs else None
    theirs_s = theirs.get("seconds")
    ratios: dict[str, object] = {}
    if isinstance(theirs_s, float):
        warm, cold = ours["warm_s"], ours["cold_s"]
        assert isinstance(warm, float), "a median of seconds"
        assert isinstance(cold, float), "seconds"
        ratios = {"ratio_warm": theirs_s / warm, "ratio_cold": theirs_s / cold}
    return {"task": task.stem, **ratios, "kernelbench": theirs, "kernelbench_built": again, "ours": ours}


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="h200_evaluator.py kernelbench", description=__doc__)
    add_options(parser)
    parser.add_argument("--src", type=Path, help="KernelBench's src folder, if it is not in the checkout")
    parser.add_argument("--tasks", nargs="+", default=list(EXPECTED))
    parser.add_argument("--child-seconds", type=float, default=240.0)
    arguments = parser.parse_args(words)
    items = Items(arguments.out, "kernelbench", arguments.earlier)
    expected = sum(EXPECTED.get(name, 60.0) for name in arguments.tasks if name not in items)
    print(f"kernelbench: about {expected:.0f} s", flush=True)
    items.add_run(machine=describe_machine(arguments.backend), largest=arguments.largest)
    budget = Budget(arguments.budget_seconds)
    for name in arguments.tasks:
        for key in budget.each([name], items, EXPECTED.get(name, 60.0)):
            try:
                items.add(key, **compare(arguments, key))
            except Exception as error:  # noqa: BLE001 - one comparison's failure is a result, not the end of the others
                items.add(key, error=f"{type(error).__name__}: {error}")
