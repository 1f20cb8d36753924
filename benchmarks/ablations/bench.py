"""An evaluator that measures nothing: it looks a plan up in the table, and fails loudly where the table has none."""

from __future__ import annotations

from pathlib import Path

from benchmarks.plans.reachable import device_text, kernel_name
from benchmarks.plans.table import KernelRow, Table, plan_key
from htam_agent.coding.base import Code
from htam_agent.errors import InfrastructureError
from htam_agent.operator import OperatorProfile
from htam_agent.task import Task
from htam_agent.verdict import Ceilings, CompileResult, DeviceFacts, ProfileResult, RunResult, Speedups, Times
from htam_agent.words import Policy


class TableMiss(InfrastructureError):
    """What was asked for is not in the table."""

    code = "table-miss"


class TableBench:
    """Bound to one task of a table. A candidate's plan is read from the `code.json` that the graph wrote beside its
    file. `changed` counts kernels whose text is no longer the one that was measured for their plan."""

    operator: OperatorProfile
    device: DeviceFacts
    ceilings: Ceilings
    policy: Policy

    def __init__(self, table: Table, task: Task) -> None:
        """Raises TableMiss when the table lacks the task, or has it with another content."""
        row = table.tasks.get(task.name)
        if row is None or row.digest != task.digest or table.header is None:
            raise TableMiss(
                f"The table has no task {task.name!r} with the content {task.digest[:12]}.",
                "Measure it: benchmarks/plan_table.py.",
            )
        self._table = table
        self._row = row
        self._times = row.baselines
        self.operator = row.operator
        self.device = table.header.device
        self.ceilings = table.header.ceilings
        self.policy = row.policy
        self.changed = 0

    def open(self) -> OperatorProfile:
        return self.operator

    def baselines(self) -> Times:
        return self._times

    def use_baselines(self, times: Times) -> None:
        """The table's own are used."""

    def close(self) -> None:
        """There is nothing to close."""

    def compile(self, source: Path) -> CompileResult:
        """As measured. Raises TableMiss."""
        row = self._find(source.parent)
        self.changed += kernel_name(device_text(source.read_text(encoding="utf-8"))) != row.kernel
        failed = row.verdict == "failed"
        return CompileResult(
            ok=not failed, backend="cpp", folder=str(source.parent), reason=row.reason if failed else "", cached=True
        )

    def run(self, compiled: CompileResult, *, timing: bool = True) -> RunResult:
        """As measured. Raises TableMiss."""
        row = self._find(Path(compiled.folder))
        if row.verdict != "correct":
            return RunResult(verdict=row.verdict, stage="verify", reason=row.reason)
        return RunResult(
            verdict="correct",
            stage="time",
            speedup=Speedups(eager=row.speedup, best=row.speedup),
            interval=row.interval,
            faster=row.interval is not None and row.interval.low > 1.0,
            times_ms=self._times.model_copy(update={"candidate": row.time_ms}),
        )

    def profile(self, compiled: CompileResult, run: RunResult) -> ProfileResult:
        """As measured. Raises TableMiss."""
        row = self._find(Path(compiled.folder))
        return ProfileResult(
            bottleneck=row.bottleneck,
            diagnosis=f"Bound by {row.bottleneck}, as the table has it.",
            floor_ms=self._times.floor or 0.0,
            fraction_of_floor=row.fraction_of_floor or 0.0,
        )

    def _find(self, folder: Path) -> KernelRow:
        code = Code.model_validate_json((folder / "code.json").read_text(encoding="utf-8"))
        if code.plan is None:
            raise TableMiss(f"The candidate in {str(folder)!r} has no plan.", "Replay with the template coder.")
        found = self._table.plans.get((self._row.task, plan_key(code.plan)))
        if found is None:
            raise TableMiss(
                f"The table has no plan {plan_key(code.plan)} of {self._row.task}: {', '.join(code.plan.strategies)} "
                f"({code.plan.model_dump_json(exclude_defaults=True)}).",
                "Measure it: benchmarks/plan_table.py with the strategies and the number of steps that are replayed.",
            )
        return found
