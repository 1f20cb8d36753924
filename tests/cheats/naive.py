"""A naive evaluator: KernelBench's method in a few lines, with the holes that the table's cheats use.

Reference and candidate live in one process, the seed is 42, the comparison is allclose with 1e-2, times come from
perf_counter and the same inputs serve every call. Runs as a program: it imports torch once, and forks a process for each
request, a JSON object on a line of stdin; the answer is one on stdout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

TIMED_CALLS = 24


def judge(task: str, file: str, compare: str, candidate_first: bool) -> dict[str, object]:
    """`right`, the median milliseconds of a call of both sides."""
    import statistics

    import torch

    names: dict[str, object] = {"__name__": "candidate", "__file__": file}
    exec(compile(task, "task.py", "exec"), names)
    exec(compile(Path(file).read_text(), file, "exec"), names)
    torch.manual_seed(42)
    init = names["get_init_inputs"]()  # type: ignore[operator]
    torch.manual_seed(42)
    reference = names["Model"](*init)  # type: ignore[operator]
    model = names["ModelNew"](*init)  # type: ignore[operator]
    model.load_state_dict(reference.state_dict(), strict=False)
    torch.manual_seed(42)
    inputs = names["get_inputs"]()  # type: ignore[operator]
    with torch.no_grad():
        right = correct(model, reference, inputs, compare, candidate_first)
        ours = timed(lambda: model(*inputs))
        theirs = timed(lambda: reference(*inputs))
    return {"right": right, "ms": statistics.median(ours), "reference_ms": statistics.median(theirs)}
