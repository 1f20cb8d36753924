"""A naive evaluator: KernelBench's method in a few lines, with the holes that the table's cheats use.

Reference and candidate live in one process, the seed is 42, the comparison is allclose with 1e-2, times come from
perf_counter and the same inputs serve every call. Run as a program it imports torch once and forks a process for each
request, a JSON object on a line of stdin; the answer is a line of stdout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIMED_CALLS, TIMED_SECONDS = 24, 0.1


def judge(task: str, file: str, compare: str, candidate_first: bool) -> dict[str, object]:
    """Whether it is right, and the milliseconds of a call: the median of its own, the mean of the reference's."""
    import statistics

    import torch

    names: dict[str, Any] = {"__name__": "candidate", "__file__": file}
    exec(compile(task, "task.py", "exec"), names)
    exec(compile(Path(file).read_text(), file, "exec"), names)
    torch.manual_seed(42)
    init = names["get_init_inputs"]()
    torch.manual_seed(42)
    reference = names["Model"](*init)
    model = names["ModelNew"](*init)
    model.load_state_dict(reference.state_dict(), strict=False)
    torch.manual_seed(42)
    inputs = names["get_inputs"]()
    with torch.no_grad():
        right = correct(model, reference, inputs, compare, candidate_first)
        ours = timed(model, inputs)
        theirs = timed(reference, inputs)
    return {"right": right, "ms": statistics.median(ours), "reference_ms": statistics.fmean(theirs)}


def correct(
    model: Callable[..., Any], reference: Callable[..., Any], inputs: list[Any], compare: str, candidate_first: bool
) -> bool:
    """Runs both and compares what comes out, by one of the ways that have been seen."""
    if candidate_first:
        actual, expected = model(*inputs), reference(*inputs)
    else:
        expected = reference(*inputs)
        reference(*inputs)  # measured beside, and dropped
        actual = model(*inputs)
    time.sleep(0.05)  # what waits for a device
    return COMPARE[compare](actual, expected)


def _allclose(actual: Any, expected: Any) -> bool:
    import torch

    pairs = zip(actual, expected, strict=True) if isinstance(expected, tuple) else [(actual, expected)]
    return all(torch.allclose(a, b, atol=1e-2, rtol=1e-2) for a, b in pairs)


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "allclose": _allclose,
    "difference": lambda actual, expected: not bool(((actual - expected).abs() > 1e-2).any()),
    "zip": lambda actual, expected: all(_allclose(a, b) for a, b in zip(actual, expected, strict=False)),
    "first": lambda actual, expected: _allclose(actual[0], expected[0]),
    "sample": lambda actual, expected: _allclose(actual.flatten()[:50], expected.flatten()[:50]),
}


def timed(call: Callable[..., object], inputs: list[Any]) -> list[float]:
    """Milliseconds of each call, after three to warm up."""
    for _ in range(3):
        call(*inputs)
    times: list[float] = []
    ends = os.times().elapsed + TIMED_SECONDS
    while len(times) < TIMED_CALLS or os.times().elapsed < ends:
        begin = time.perf_counter()
        call(*inputs)
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def serve() -> None:
    """Answers requests until stdin ends, each in a process of its own."""
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        reading, writing = os.pipe()
        if os.fork() == 0:
            _answer(request, writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            answer = pipe.read()
        os.wait()
        print(answer or json.dumps({"error": "the process ended"}), flush=True)


def _answer(request: dict[str, Any], writing: int) -> None:
    os.environ["HTAM_KERNEL_DIR"] = request.pop("kernels")
    os.dup2(2, 1)
    try:
        answer: dict[str, object] = judge(**request)
    except Exception as error:  # noqa: BLE001 - whatever the file raises is told
        answer = {"error": f"{type(error).__name__}: {error}"}
    with os.fdopen(writing, "w") as pipe:
        pipe.write(json.dumps(answer))
        pipe.flush()
        os._exit(0)


if __name__ == "__main__":
    serve()
