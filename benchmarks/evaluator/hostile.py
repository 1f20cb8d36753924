"""500 evaluations of a small task in a row, a tenth of them hostile: is a verdict lost, a process left, memory held?

Each block keeps one bench open. Every tenth candidate is hostile (a crash, a hang, a leak, an illegal access, a fork
...), every tenth wrong, the rest right; every twentieth is timed. What is counted: evaluations without a verdict,
verdicts that are not what the candidate deserves, processes alive after the bench is closed, and the growth of host
memory (main process, zygote, reference) and of device memory over the block.
"""

from __future__ import annotations

import argparse
import os
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.evaluator import hostile_kernels as kernels
from benchmarks.evaluator.benches import add_options
from benchmarks.evaluator.items import Budget, Items, describe_machine
from benchmarks.evaluator.machine import DeviceMemory, adopt_orphans, descendants, growth, resident_megabytes

if TYPE_CHECKING:
    from htam_agent.evaluation.bench import Bench

BLOCK = 125
SAMPLE_EVERY = 5
RUN_SECONDS = 3.0
"""Limit of one order: what a hanging candidate costs."""


class Block:
    """The evaluations of one block and what was seen on the way."""

    def __init__(self, arguments: argparse.Namespace, offset: int) -> None:
        self._arguments = arguments
        self._offset = offset
        self._folder: Path = arguments.work / f"hostile-{uuid.uuid4().hex[:8]}"
        self._device = DeviceMemory()
        self._bench: Bench | None = None
        self.verdicts: Counter[str] = Counter()
        self.lost: list[str] = []
        self.undeserved: list[str] = []
        self.kinds: dict[str, str] = {}
        self.memory: dict[str, list[float | None]] = {"main": [], "zygote": [], "reference": [], "device": []}
        self.seconds: list[float] = []

    def run(self, count: int) -> dict[str, object]:
        """The block's facts."""
        began = time.monotonic()
        adopt_orphans()
        before = descendants(os.getpid())
        self._folder.mkdir(parents=True)
        (self._folder / "task.py").write_text(kernels.TASK, encoding="utf-8")
        try:
            for number in range(self._offset, self._offset + count):
                self._one(number)
                if number % SAMPLE_EVERY == 0:
                    self._sample()
        finally:
            self._close()
        time.sleep(0.5)
        left = {pid: line for pid, line in descendants(os.getpid()).items() if pid not in before}
        return {
            "evaluations": count,
            "lost": len(self.lost),
            "lost_reasons": self.lost[:20],
            "undeserved": self.undeserved[:20],
            "left_over": len(left),
            "left_over_processes": list(left.values())[:10],
            "verdicts": dict(self.verdicts),
            "hostile": self.kinds,
            "growth_megabytes": {name: growth(values) for name, values in self.memory.items()},
            "memory_megabytes": self.memory,
            "median_s": sorted(self.seconds)[len(self.seconds) // 2],
            "seconds": time.monotonic() - began,
        }

    def _one(self, number: int) -> None:
        name, expected, text = self._candidate(number)
        file = self._folder / "kernel.py"
        file.write_text(text, encoding="utf-8")
        began = time.monotonic()
        try:
            bench = self._opened()
            result = bench.run(bench.compile(file), timing=number % 20 == 0)
        except Exception as error:  # noqa: BLE001 - a verdict that is lost is what this looks for
            self.lost.append(f"{name}: {type(error).__name__}: {error}"[:500])
            self._close()
            return
        self.seconds.append(time.monotonic() - began)
        self.verdicts[result.verdict] += 1
        if expected == "hostile":
            self.kinds[name] = f"{result.verdict} ({result.stage}): {result.reason[:160]}"
            fine = result.verdict != "correct" or name in kernels.HARMLESS
        else:
            fine = result.verdict == expected
        if not fine:
            self.undeserved.append(f"{name}: {result.verdict} ({result.stage}): {result.reason[:300]}")

    def _candidate(self, number: int) -> tuple[str, str, str]:
        """Name, the verdict that it deserves, and text."""
        backend, token = self._arguments.backend, uuid.uuid4().hex
        if number % 10 == 7:
            names = kernels.hostile_names(backend)
            name = names[number // 10 % len(names)]
            return name, "hostile", kernels.hostile(backend, name, token)
        if number % 10 == 3:
            return f"wrong {number}", "wrong", kernels.wrong(backend, number // 10, token)
        return f"honest {number}", "correct", kernels.honest(backend, token)

    def _opened(self) -> Bench:
        if self._bench is None:
            from htam_agent.evaluation.bench import Bench, Limits
            from htam_agent.task import Task

            self._bench = Bench(
                Task.parse(str(self._folder / "task.py")),
                backend=self._arguments.backend,
                folder=self._folder / "bench",
                limits=Limits(run_seconds=RUN_SECONDS, total_seconds=60.0, memory_bytes=4 << 30, output_bytes=8 << 20),
                compile_baseline=False,
            )
            self._bench.open()
        return self._bench

    def _sample(self) -> None:
        self.memory["main"].append(resident_megabytes(os.getpid()))
        self.memory["device"].append(self._device.used_megabytes())
        if self._bench is not None:
            zygote, reference = self._bench.processes
            self.memory["zygote"].append(resident_megabytes(zygote))
            self.memory["reference"].append(resident_megabytes(reference))

    def _close(self) -> None:
        if self._bench is not None:
            self._bench.close()
            self._bench = None


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="h200_evaluator.py hostile", description=__doc__)
    add_options(parser, tasks=False)
    parser.add_argument("--evaluations", type=int, default=500)
    parser.add_argument("--block", type=int, default=BLOCK)
    arguments = parser.parse_args(words)
    items = Items(arguments.out, "hostile", arguments.earlier)
    keys = [str(start) for start in range(0, arguments.evaluations, arguments.block)]
    each = 0.45 * arguments.block + 10.0
    print(f"hostile: about {each * sum(key not in items for key in keys):.0f} s", flush=True)
    items.add_run(machine=describe_machine(arguments.backend))
    for key in Budget(arguments.budget_seconds).each(keys, items, each):
        count = min(arguments.block, arguments.evaluations - int(key))
        items.add(key, **Block(arguments, int(key)).run(count))
