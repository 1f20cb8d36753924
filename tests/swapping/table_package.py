"""A package of somebody else's with a whole evaluator and a coder: figures from a table, no process, no compiler."""

from __future__ import annotations

from pathlib import Path

SOURCE = '''
from __future__ import annotations

import os

from htam_agent.coding.base import Code
from htam_agent.operator import OperatorProfile, TensorInfo
from htam_agent.verdict import (
    Ceilings, CompileResult, DeviceFacts, Interval, ProfileResult, RunResult, Speedups, Times,
)

X = TensorInfo(name="x", shape=(1024, 1024), dtype="float32")


class Table:
    def __init__(self, task, options, folder) -> None:
        self.task = task

    def open(self) -> OperatorProfile:
        self.device = DeviceFacts(backend="cpp", name="a table", architecture="x86_64", threads=2)
        self.ceilings = Ceilings(copy_bytes_per_second=1e10, fp32_operations_per_second=1e11)
        self.policy = "own-kernels-only"
        return OperatorProfile(
            name=self.task.name, operator_class="pointwise", operators=["aten.relu"], inputs=[X], parameters=[],
            outputs=[X], unavoidable_bytes=2 * 4 * 1024 * 1024, operations=1024 * 1024, nodes=[],
        )

    def baselines(self) -> Times:
        return Times(eager=4.0, eager_tf32=4.0, best=4.0, floor=0.5)

    def use_baselines(self, times: Times) -> None: ...

    def close(self) -> None: ...

    def compile(self, source) -> CompileResult:
        return CompileResult(ok=True, backend="cpp", folder=str(source.parent))

    async def run(self, compiled: CompileResult, *, timing: bool = True) -> RunResult:
        times = Times(eager=4.0, eager_tf32=4.0, best=4.0, floor=0.5, candidate=2.0)
        return RunResult(
            verdict="correct", stage="time", times_ms=times, speedup=Speedups(eager=2.0, best=2.0),
            interval=Interval(low=1.9, high=2.1), faster=True,
        )

    def profile(self, compiled: CompileResult, run: RunResult) -> ProfileResult:
        return ProfileResult(bottleneck="memory", diagnosis="Read from a table.", floor_ms=0.5, fraction_of_floor=0.25)


class Dying(Table):
    """Its profiler's licence ends with the second profile."""

    profiles = 0

    def profile(self, compiled: CompileResult, run: RunResult) -> ProfileResult:
        Dying.profiles += 1
        if Dying.profiles == 2:
            raise OSError("the licence has ended")
        return super().profile(compiled, run)


class WithoutDevice(Table):
    def open(self) -> OperatorProfile:
        found = super().open()
        del self.device
        return found


class Constant:
    """Writes a file that a table judges."""

    name = "constant"

    def initial_plan(self, operator, backend):
        return None

    def generate(self, request) -> Code:
        strategy = request.strategies[0].strategy.id if request.strategies else ""
        return Code(source=f"# step {request.step}", strategy=strategy)

    def repair(self, request) -> Code:
        return Code(refusal="it was right the first time")
'''


def install(folder: Path) -> Path:
    """The package in `folder`, which belongs on the path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tablepkg.py").write_text(SOURCE)
    return folder
