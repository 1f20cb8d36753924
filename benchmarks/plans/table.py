"""The table: one JSON line for its header, each task, each measured kernel, and the steps between kernels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field

from htam_agent.coding.plan import Plan
from htam_agent.memory.model import Strategy
from htam_agent.operator import OperatorProfile
from htam_agent.task import Task
from htam_agent.verdict import Ceilings, DeviceFacts, Interval, Times
from htam_agent.words import Bottleneck, Policy, Record, Verdict

FORM = "htam.plan-table/1"
OPERATORS = Path(__file__).parent / "operators"


class Header(Record):
    """Where and how the table was measured, and the strategies whose plans are in it."""

    kind: Literal["table"] = "table"
    form: Literal["htam.plan-table/1"] = "htam.plan-table/1"
    device: DeviceFacts
    ceilings: Ceilings
    steps: int
    """Plans that so many steps can reach are in the table."""
    rounds: int
    strategies: list[Strategy]


class TaskRow(Record):
    """One operator with its reference's times (milliseconds)."""

    kind: Literal["task"] = "task"
    task: str
    digest: str
    """SHA-256 of the operator's file when it was measured."""
    operator: OperatorProfile
    baselines: Times
    policy: Policy
    kernels: int
    """Different kernels that are to be measured: with fewer rows the table is not complete."""
    moves: list[tuple[str, str, str]] = Field(default_factory=list)
    """(kernel, strategy, kernel): what one step does."""


class KernelRow(Record):
    """One kernel. `plans` are the keys of all plans that write this device text."""

    kind: Literal["kernel"] = "kernel"
    task: str
    kernel: str
    plans: list[str]
    strategies: list[str]
    """Those whose block is in the kernel, sorted."""
    steps: int
    """Fewest steps that reach it from the plain plan."""
    verdict: Verdict
    reason: str = ""
    time_ms: float | None = None
    """Median over the rounds."""
    speedup: float | None = None
    """Median over the rounds of reference time over kernel time."""
    interval: Interval | None = None
    bottleneck: Bottleneck = "unknown"
    fraction_of_floor: float | None = None


def plan_key(plan: Plan) -> str:
    """Hash of what a plan says, whatever the order in which strategies made it."""
    content = plan.model_dump(mode="json", exclude={"strategies"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@dataclass
class Table:
    """A table in memory."""

    header: Header | None = None
    tasks: dict[str, TaskRow] = field(default_factory=dict)
    kernels: dict[tuple[str, str], KernelRow] = field(default_factory=dict)
    plans: dict[tuple[str, str], KernelRow] = field(default_factory=dict)
    """(task, plan key) -> its kernel."""

    @classmethod
    def read(cls, path: Path) -> Table:
        """The rows of a file so far; a last line that was cut short is left out. Empty where there is no file."""
        table = cls()
        if not path.exists():
            return table
        lines = path.read_text(encoding="utf-8").split("\n")
        for line in lines[:-1]:
            table.add(json.loads(line))
        return table

    def add(self, row: dict[str, object]) -> None:
        """Takes in one line. Raises ValueError for an unknown kind, and for a second header that differs."""
        kind = row.get("kind")
        if kind == "table":
            header = Header.model_validate(row)
            if self.header is not None and self.header != header:
                raise ValueError("The table has two headers that differ.")
            self.header = header
        elif kind == "task":
            task = TaskRow.model_validate(row)
            self.tasks[task.task] = task
        elif kind == "kernel":
            kernel = KernelRow.model_validate(row)
            self.kernels[kernel.task, kernel.kernel] = kernel
            self.plans.update({(kernel.task, key): kernel for key in kernel.plans})
        else:
            raise ValueError(f"The table has a line of the unknown kind {kind!r}.")

    def of_task(self, task: str) -> list[KernelRow]:
        """The task's kernels, by name."""
        return sorted((row for row in self.kernels.values() if row.task == task), key=lambda row: row.kernel)

    def complete(self) -> list[str]:
        """Tasks of which every kernel was measured, by name."""
        return sorted(name for name, task in self.tasks.items() if len(self.of_task(name)) == task.kernels)


def append(path: Path, rows: Iterable[Record]) -> None:
    """Appends rows whole: a line that an earlier writer left half is ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(row.model_dump_json(exclude_none=True) + "\n" for row in rows)
    if path.exists():
        whole = path.read_bytes()
        if whole and not whole.endswith(b"\n"):
            path.write_bytes(whole[: whole.rfind(b"\n") + 1])
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def operator_task(name: str) -> Task:
    """The task of one of the table's operators."""
    return Task.parse(str(OPERATORS / f"{name}.py"))


def operator_names() -> list[str]:
    """All operators, by name."""
    return sorted(path.stem for path in OPERATORS.glob("*.py"))
