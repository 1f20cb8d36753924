"""Whole runs of the graph with a model on loopback and an evaluator that answers at once."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import ROOT
from tests.support.endpoint import Reply, completion

TASK = ROOT / "tests" / "tasks" / "row_softmax.py"
EVALUATOR = "benchmarks.instant_evaluator:InstantBench"


def answer(said: str = "1.5", usage: tuple[int, int] | None = (1000, 100)) -> Reply:
    """A model's answer whose kernel the instant evaluator judges by `said`: a speedup, wrong or broken."""
    file = f"# strategy: none\n# instant: {said}\n\n\nclass ModelNew:\n    pass\n"
    return Reply(200, completion(f"Here it is.\n\n```python\n{file}```\n", usage=usage))


def settings_of(folder: Path, url: str, **more: object) -> dict[str, object]:
    """Arguments of `optimize`: a model at `url`, no preflight, everything in `folder`."""
    return {
        "backend": "cpp", "coder": "model", "model": "scripted", "base_url": url, "api_key": "sk-never-shown",
        "preflight": False, "seed": 1, "steps": 3, "runs": folder / "runs", "out": folder / "run",
        "memory": folder / "memory", "tools": {"evaluator": EVALUATOR}, "model_attempts": 2, **more,
    }  # fmt: skip
