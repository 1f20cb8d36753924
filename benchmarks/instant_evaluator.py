"""An evaluator that answers at once, from words in the candidate's text: for what is not about evaluation.

`# instant: 1.5` in a kernel's file means correct and 1.5 times as fast as the original, `# instant: wrong` wrong, and
`# instant: broken` that it does not build. Any other file is correct and as fast as the original. Nothing is built or
run, so a whole run of the graph takes as long as the graph itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.coding.examples import example_request
from htam_agent.operator import Node
from htam_agent.verdict import CompileResult, Interval, ProfileResult, RunResult, Speedups, Times

if TYPE_CHECKING:
    from htam_agent.operator import OperatorProfile
    from htam_agent.runs.records import RunOptions
    from htam_agent.task import Task
    from htam_agent.words import Policy

ORIGINAL_MS = 2.0
FLOOR_MS = 0.5
_SAID = re.compile(r"^# instant: (\S+)$", re.MULTILINE)


class InstantBench:
    """Takes the place of evaluation.bench.Bench."""

    def __init__(self, task: Task, options: RunOptions, folder: Path) -> None:
        example = example_request(options.backend)
        self.backend = options.backend
        x = example.operator.inputs[0]
        given = Node(name="x", kind="input", target="x", outputs=[x])
        self.operator = example.operator.model_copy(update={"nodes": [given, *example.operator.nodes]})
        self.device = example.device
        assert example.ceilings is not None
        self.ceilings = example.ceilings
        self.policy: Policy = options.policy or "own-kernels-only"

    def open(self) -> OperatorProfile:
        return self.operator

    def baselines(self) -> Times:
        return Times(eager=ORIGINAL_MS, eager_tf32=ORIGINAL_MS, best=ORIGINAL_MS, floor=FLOOR_MS)

    def use_baselines(self, times: Times) -> None:
        """They are always the same."""

    def close(self) -> None:
        """Nothing is open."""

    def compile(self, source: Path) -> CompileResult:
        if _said(source) == "broken":
            return CompileResult(
                ok=False, backend=self.backend, log="error: broken on purpose", reason="does not build"
            )
        return CompileResult(ok=True, backend=self.backend, binary=str(source))

    def run(self, compiled: CompileResult, *, timing: bool = True) -> RunResult:
        said = _said(Path(compiled.binary))
        if said == "wrong":
            return RunResult(verdict="wrong", stage="verify", reason="wrong on purpose")
        speedup = float(said)
        return RunResult(
            verdict="correct",
            stage="time",
            speedup=Speedups(eager=speedup, eager_tf32=speedup, best=speedup),
            interval=Interval(low=0.99 * speedup, high=1.01 * speedup),
            faster=speedup > 1.02,
            times_ms=self.baselines().model_copy(update={"candidate": ORIGINAL_MS / speedup}),
        )

    def profile(self, compiled: CompileResult, run: RunResult) -> ProfileResult:
        fraction = FLOOR_MS / (run.times_ms.candidate or ORIGINAL_MS)
        return ProfileResult(
            bottleneck="memory", diagnosis="Bound by memory.", floor_ms=FLOOR_MS, fraction_of_floor=fraction
        )


def _said(source: Path) -> str:
    found = _SAID.search(source.read_text(encoding="utf-8"))
    return found[1] if found else "1.0"
