"""One evaluation by KernelBench's own evaluator, in a process of its own; run by versus.py.

Its package is imported from a checkout's src folder as it is. What that folder imports for talking to models and for
fetching data plays no part in an evaluation: where such a package is missing, an empty module stands in, and the answer
names it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import types
from pathlib import Path
from unittest import mock

UNUSED = ("requests", "dotenv", "tqdm", "openai", "litellm", "datasets", "pandas", "tomli")
"""Imported by KernelBench's package at the top of its files, used by nothing that an evaluation calls."""


def stand_in() -> list[str]:
    """Puts empty modules where a package of UNUSED is missing; their names."""
    missing = [name for name in UNUSED if importlib.util.find_spec(name) is None]
    for name in missing:
        module = types.ModuleType(name)
        module.__dict__["__getattr__"] = lambda attribute: mock.MagicMock(name=attribute)
        sys.modules[name] = module
    return missing


def evaluate(task: Path, kernel: Path, build: Path) -> dict[str, object]:
    """5 correctness trials and 100 timed runs, as KernelBench's scripts ask for; seconds of the call alone."""
    import torch
    from kernelbench.eval import eval_kernel_against_ref

    build.mkdir(parents=True, exist_ok=True)
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")  # the start of CUDA is nobody's work
    began = time.monotonic()
    result = eval_kernel_against_ref(
        task.read_text(encoding="utf-8"),
        kernel.read_text(encoding="utf-8"),
        num_correct_trials=5,
        num_perf_trials=100,
        measure_performance=True,
        build_dir=str(build),
        device=torch.device("cuda:0"),
    )
    seconds = time.monotonic() - began
    if result is None:
        return {"seconds": seconds, "error": "it answered nothing"}
    metadata = {name: str(value)[:500] for name, value in result.metadata.items()}
    return {
        "seconds": seconds,
        "compiled": result.compiled,
        "correct": result.correctness,
        "runtime_ms": result.runtime,
        "reference_ms": getattr(result, "ref_runtime", None),
        "metadata": metadata,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--src", type=Path, required=True)
    parser.add_argument("--task", type=Path, required=True)
    parser.add_argument("--kernel", type=Path, required=True)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--answer", type=Path, required=True)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.src))
    missing = stand_in()
    try:
        answer = evaluate(arguments.task, arguments.kernel, arguments.build)
    except BaseException as error:  # noqa: BLE001 - whatever it was is the answer
        answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
    arguments.answer.write_text(json.dumps({**answer, "stand_ins": missing}), encoding="utf-8")


if __name__ == "__main__":
    main()
