"""The child that loads an operator and calls kernels: `python -m benchmarks.plans.worker ORDER.json`.

The kernels come from the template coder and the shipped strategies, not from strangers: they run in this process, side
by side with the reference, so that hundreds are timed in the same rounds. The verdict is the strict protocol's rule
(verify.py, accuracy.py) on fresh inputs of the task; the hostile cases of the evaluator are left out.

Every round times every kernel once, in a new random order, with the reference between every few of them: what drifts
on the machine meets all alike, and cancels in the ratio to the reference next to it.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from htam_agent.evaluation.accuracy import measure
from htam_agent.evaluation.float64 import widened
from htam_agent.evaluation.loading import LoadedTask, call, load_task
from htam_agent.evaluation.trees import flatten
from htam_agent.evaluation.verify import compare, rms
from htam_agent.task import Task
from htam_agent.tracing import trace_model

BLOCK_SECONDS = 0.004
"""Of the timed calls of one kernel in one round."""
LONGEST_BLOCK = 400
SETTLE_SECONDS = 0.002
"""After the reference: its threads spin for about a millisecond before they sleep, and would be in a kernel's way."""
NEIGHBOURS = 6
"""Kernels between two blocks of the reference."""
TRIALS = (11, 12)


def main(path: Path) -> None:
    """Does what the order says: {"task", "do": "trace" | "measure", "kernels": [{"name", "file"}], "rounds", "out"}."""
    order = json.loads(path.read_text(encoding="utf-8"))
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    loaded = load_task(Task.parse(order["task"]), "cpu", "tf32", 1, [])
    with torch.no_grad():
        if order["do"] == "trace":
            answer = trace_model(loaded.model, loaded.draw(1), loaded.model.__class__.__name__).model_dump(mode="json")
        else:
            answer = measured(loaded, order["kernels"], order["rounds"])
    Path(order["out"]).write_text(json.dumps(answer), encoding="utf-8")


def measured(loaded: LoadedTask, kernels: list[dict[str, str]], rounds: int) -> dict[str, dict[str, object]]:
    """Kernel name -> {"verdict", "reason", "times": [ms], "reference": [ms]}; no times unless it is correct."""
    answers: dict[str, dict[str, object]] = {}
    modules: dict[str, Callable[[], object]] = {}
    inputs = loaded.draw(TRIALS[0])
    for kernel in kernels:
        try:
            module = kernel_module(kernel["name"], Path(kernel["file"]), loaded)
            reason = difference(module, loaded)
        except Exception as error:  # noqa: BLE001 - a kernel that fails is a recorded verdict
            answers[kernel["name"]] = {"verdict": "failed", "reason": f"{type(error).__name__}: {error}"[:300]}
            continue
        answers[kernel["name"]] = {"verdict": "wrong" if reason else "correct", "reason": reason}
        if not reason:
            modules[kernel["name"]] = lambda module=module: call(module, inputs)
    times = timed(modules, lambda: call(loaded.model, inputs), rounds)
    for name, (own, reference) in times.items():
        answers[name] |= {"times": own, "reference": reference}
    return answers


def kernel_module(name: str, file: Path, loaded: LoadedTask) -> Any:
    """`ModelNew` of a candidate file, with the reference's parameters."""
    spec = importlib.util.spec_from_file_location(f"kernel_{name}", file)
    assert spec is not None, "the file was written by the caller"
    assert spec.loader is not None, "a Python file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    built = module.ModelNew(**loaded.init) if isinstance(loaded.init, dict) else module.ModelNew(*loaded.init)
    built.load_state_dict(dict(zip(built.state_dict(), loaded.model.state_dict().values(), strict=True)))
    return built


def difference(module: Callable[..., object], loaded: LoadedTask) -> str:
    """What is wrong with the kernel's outputs, by the strict rule; empty when nothing is."""
    exact_model = copy.deepcopy(loaded.model).double()
    for trial in TRIALS:
        inputs = loaded.draw(trial)
        actual = flatten(call(module, inputs))[1]
        expected = flatten(call(loaded.model, inputs))[1]
        exact = flatten(call(exact_model, widened(inputs)))[1]
        for ours, theirs, truth in zip(actual, expected, exact, strict=True):
            finding = compare(ours, theirs, "strict", scale=rms(theirs))
            if not finding.passed:
                return finding.detail
            errors = measure(ours, theirs, truth, terms=max(tensor.numel() for tensor in flatten(inputs)[1]))
            if errors.excess("float32") > 1.0:
                return errors.describe("float32")
    return ""


def timed(
    kernels: dict[str, Callable[[], object]], reference: Callable[[], object], rounds: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Name -> (milliseconds of a call in each round, the reference's beside it)."""
    calls = {name: calls_for(work) for name, work in kernels.items()}
    reference_calls = calls_for(reference)
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in kernels}
    draws = random.Random(1)
    for _ in range(rounds):
        names = draws.sample(sorted(kernels), len(kernels))
        before = block(reference, reference_calls)
        for start in range(0, len(names), NEIGHBOURS):
            time.sleep(SETTLE_SECONDS)
            group = names[start : start + NEIGHBOURS]
            own = [block(kernels[name], calls[name]) for name in group]
            time.sleep(SETTLE_SECONDS)
            after = block(reference, reference_calls)
            for place, (name, milliseconds) in enumerate(zip(group, own, strict=True)):
                near = before + (after - before) * (place + 0.5) / len(group)
                found[name][0].append(milliseconds)
                found[name][1].append(near)
            before = after
    return found


def calls_for(work: Callable[[], object]) -> int:
    """Calls of one block, from the shortest of three."""
    shortest = min(block(work, 1) for _ in range(3)) / 1e3
    return max(1, min(LONGEST_BLOCK, round(BLOCK_SECONDS / max(shortest, 1e-6))))


def block(work: Callable[[], object], calls: int) -> float:
    """Milliseconds of a call, after one that is not counted."""
    work()
    started = time.perf_counter()
    for _ in range(calls):
        work()
    return 1e3 * (time.perf_counter() - started) / calls


if __name__ == "__main__":
    main(Path(sys.argv[1]))
