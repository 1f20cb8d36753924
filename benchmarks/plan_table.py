"""Measures every reachable plan of the template coder on the CPU backend into a table of JSON lines.

    python benchmarks/plan_table.py --out benchmarks/results/cpu-plan-table.jsonl [--budget-seconds N]

Resumable: each batch of kernels is appended as soon as it is measured, and the same command goes on where the last one
ended. `--build` builds every kernel and measures none; what was built before is taken from the build cache. `--plans`
only counts. `--operators` and `--strategies` make a smaller table. The machine should do nothing else meanwhile.

The strategies are those of STRATEGIES: a set whose closure can be measured in one sitting. Left out of the C++ seed are
strategies that would double the number of plans (restricted outputs, prefetching) or are further ways of scheduling
(bound threads, few threads for little). Operators that the
template coder cannot trace have no plans: cross entropy (nll_loss), cumulative sums, KL divergence, arg max, group
normalisation.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.plans.reachable import Closure, Kernel, Reachable  # noqa: E402
from benchmarks.plans.table import (  # noqa: E402
    Header,
    KernelRow,
    Table,
    TaskRow,
    append,
    operator_names,
    operator_task,
)
from htam_agent.backends.cache import build_with_cache  # noqa: E402
from htam_agent.backends.ceilings import CeilingStore  # noqa: E402
from htam_agent.backends.cpp import CppBackend  # noqa: E402
from htam_agent.backends.registry import require_backend  # noqa: E402
from htam_agent.evaluation.policy import default_policy  # noqa: E402
from htam_agent.evaluation.timing import device_lock, to_interval  # noqa: E402
from htam_agent.memory.model import Strategy  # noqa: E402
from htam_agent.memory.seeding import load_seed  # noqa: E402
from htam_agent.operator import OperatorProfile  # noqa: E402
from htam_agent.tools.diagnose import diagnose, floor_ms  # noqa: E402
from htam_agent.tracing import features_of  # noqa: E402
from htam_agent.verdict import Ceilings, CompileResult, DeviceFacts, Times  # noqa: E402

STEPS = 6
ROUNDS = 11
BATCH = 120
STRATEGIES = (
    "cpp-dynamic-chunks", "cpp-guided-schedule", "cpp-one-pass-moments", "cpp-online-softmax", "cpp-overlapping-tail",
    "cpp-peeled-tail", "cpp-polynomial-erf", "cpp-polynomial-exp", "cpp-polynomial-log", "cpp-polynomial-tanh",
    "cpp-row-buffer", "cpp-simd-loops", "cpp-split-row", "cpp-streaming-stores", "cpp-threads-over-rows",
    "cpp-threads-over-tiles", "cpp-unrolled-loops", "cpp-vector-accumulators",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """Where it is measured."""

    device: DeviceFacts
    ceilings: Ceilings


def ask_worker(scratch: Path, order: dict[str, object]) -> dict[str, object]:
    """Has the child do one order. Raises CalledProcessError when it ends badly."""
    file, out = scratch / "order.json", scratch / "answer.json"
    file.write_text(json.dumps({**order, "out": str(out)}), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HTAM_KERNEL_DIR": str(scratch / "binaries")}
    command = [sys.executable, "-m", "benchmarks.plans.worker", str(file)]
    subprocess.run(command, cwd=ROOT, check=True, env=environment)
    return dict(json.loads(out.read_text(encoding="utf-8")))


def build(kernels: list[Kernel], folder: Path) -> dict[str, CompileResult]:
    """Every kernel's build, two at once; binaries come to lie in `folder`."""
    backend = require_backend("cpp")
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda kernel: build_with_cache(backend, kernel.text, folder), kernels))
    return {kernel.name: result for kernel, result in zip(kernels, results, strict=True)}


def measure_batch(
    name: str, batch: list[Kernel], task: TaskRow, machine: Machine, scratch: Path
) -> tuple[list[KernelRow], list[float]]:
    """Rows of these kernels, and the reference's milliseconds in every round."""
    built = build(batch, scratch / "binaries")
    order = []
    for kernel in batch:
        if built[kernel.name].ok:
            file = scratch / f"{kernel.name}.py"
            file.write_text(kernel.source, encoding="utf-8")
            order.append({"name": kernel.name, "file": str(file)})
    with device_lock("cpu"):
        answers = ask_worker(
            scratch,
            {"task": operator_task(name).path, "do": "measure", "kernels": order, "rounds": ROUNDS},
        )
    rows, reference = [], []
    for kernel in batch:
        answer = answers.get(kernel.name) or {"verdict": "failed", "reason": built[kernel.name].reason}
        assert isinstance(answer, dict), "the worker answers with an object for each kernel"
        reference += answer.get("reference", [])
        rows.append(kernel_row(name, kernel, answer, task, machine))
    return rows, reference


def kernel_row(name: str, kernel: Kernel, answer: dict[str, object], task: TaskRow, machine: Machine) -> KernelRow:
    """The row of one kernel from the worker's answer."""
    common = {
        "task": name, "kernel": kernel.name, "plans": sorted(kernel.plans), "strategies": kernel.strategies,
        "steps": kernel.steps, "verdict": answer["verdict"], "reason": answer.get("reason", ""),
    }  # fmt: skip
    times, reference = answer.get("times"), answer.get("reference")
    if not isinstance(times, list) or not isinstance(reference, list):
        return KernelRow.model_validate(common)
    ratios = [theirs / own for own, theirs in zip(times, reference, strict=True)]
    milliseconds = statistics.median(times)
    known = Times(candidate=milliseconds, best=statistics.median(reference), floor=task.baselines.floor)
    profile = diagnose(task.operator, known, machine.ceilings, machine.device)
    measured = {
        "time_ms": float(f"{milliseconds:.5g}"),
        "speedup": float(f"{statistics.median(ratios):.5g}"),
        "interval": to_interval(ratios),
        "bottleneck": profile.bottleneck,
        "fraction_of_floor": float(f"{profile.fraction_of_floor:.4g}"),
    }
    return KernelRow.model_validate({**common, **measured})


def trace(name: str, scratch: Path) -> OperatorProfile:
    """The operator, traced in the child."""
    return OperatorProfile.model_validate(ask_worker(scratch, {"task": operator_task(name).path, "do": "trace"}))


def task_row(name: str, operator: OperatorProfile, found: Reachable, machine: Machine, scratch: Path) -> TaskRow:
    """The task's row, with the reference's time beside the plain plan."""
    floor = floor_ms(operator, machine.ceilings, "cpp")
    row = TaskRow(
        task=name,
        digest=operator_task(name).digest,
        operator=operator,
        baselines=Times(floor=floor),
        policy=default_policy(operator),
        kernels=len(found.kernels),
        moves=sorted(found.moves),
    )
    plain = min(found.kernels.values(), key=lambda kernel: (kernel.steps, kernel.name))
    _, reference = measure_batch(name, [plain], row, machine, scratch)
    eager = float(f"{statistics.median(reference):.5g}")
    return row.model_copy(update={"baselines": Times(eager=eager, best=eager, floor=floor)})


def choose_strategies(wanted: list[str] | None) -> dict[str, Strategy]:
    """The C++ strategies of the table. Exits when one is unknown."""
    known = {strategy.id: strategy for strategy in load_seed().strategies if strategy.backend == "cpp"}
    unknown = sorted(set(wanted or STRATEGIES) - known.keys())
    if unknown:
        sys.exit(f"There is no C++ strategy {unknown[0]!r}. Known: {', '.join(sorted(known))}.")
    names = wanted or list(STRATEGIES)
    return {name: known[name] for name in names}


class Measuring:
    """One run of the command over a table that may have rows already."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.table = Table.read(arguments.out)
        backend = require_backend("cpp")
        if self.table.header is None:
            # Measured now, whatever the machine did when they were measured before.
            with tempfile.TemporaryDirectory(prefix="htam-ceilings-") as folder:
                ceilings = CppBackend(ceilings=CeilingStore(Path(folder))).ceilings()
            self.machine = Machine(backend.device_facts(), ceilings)
            chosen = choose_strategies(arguments.strategies)
            header = Header(
                device=self.machine.device, ceilings=self.machine.ceilings, steps=STEPS, rounds=ROUNDS,
                strategies=list(chosen.values()),
            )  # fmt: skip
            if not (arguments.plans or arguments.build):
                append(arguments.out, [header])
        else:
            header = self.table.header
            if header.device != backend.device_facts():
                sys.exit("The table was begun on another machine or with other versions: give another --out.")
            self.machine = Machine(header.device, header.ceilings)
        self.strategies = {strategy.id: strategy for strategy in header.strategies}
        self.began = time.monotonic()

    def late(self) -> bool:
        """Whether the budget is used up."""
        return time.monotonic() - self.began > self.arguments.budget_seconds

    def run(self) -> None:
        for name in self.arguments.operators or operator_names():
            if name in self.table.complete():
                continue
            if self.late():
                print("the budget is used up; run the same command again to go on", flush=True)
                return
            with tempfile.TemporaryDirectory(prefix="htam-plans-") as folder:
                self.operator(name, Path(folder))

    def operator(self, name: str, scratch: Path) -> None:
        """Measures what is missing of one operator."""
        started = time.monotonic()
        operator = trace(name, scratch)
        found = Closure(operator, features_of(operator), self.strategies, STEPS).find()
        kernels = sorted(found.kernels.values(), key=lambda kernel: kernel.name)
        plans = sum(len(kernel.plans) for kernel in kernels)
        print(f"{name}: {len(kernels)} kernels of {plans} plans, {len(found.moves)} moves", flush=True)
        if self.arguments.plans:
            return
        if self.arguments.build:
            build(kernels, scratch / "binaries")
            print(f"{name}: built, {time.monotonic() - started:.0f} s", flush=True)
            return
        if name not in self.table.tasks:
            self.keep([task_row(name, operator, found, self.machine, scratch)])
        done = {row.kernel for row in self.table.of_task(name)}
        missing = [kernel for kernel in kernels if kernel.name not in done]
        # Neighbours by name are no neighbours by plan, so a drift of the machine favours no strategy.
        for place in range(0, len(missing), BATCH):
            if self.late():
                return
            batch = missing[place : place + BATCH]
            rows, _ = measure_batch(name, batch, self.table.tasks[name], self.machine, scratch)
            self.keep(rows)
        correct = sum(row.verdict == "correct" for row in self.table.of_task(name))
        took = time.monotonic() - started
        print(f"{name}: {correct} of {len(kernels)} kernels are correct, {took:.0f} s", flush=True)

    def keep(self, rows: list[TaskRow] | list[KernelRow]) -> None:
        append(self.arguments.out, rows)
        for row in rows:
            self.table.add(json.loads(row.model_dump_json(exclude_none=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/cpu-plan-table.jsonl")
    parser.add_argument("--operators", nargs="+", choices=operator_names())
    parser.add_argument("--strategies", nargs="+", help="ids of C++ strategies (default: STRATEGIES)")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"))
    parser.add_argument("--build", action="store_true", help="build every kernel into the cache, measure none")
    parser.add_argument("--plans", action="store_true", help="count the plans and end")
    Measuring(parser.parse_args()).run()


if __name__ == "__main__":
    main()
