"""Facts of a task on this machine: what a run needs to know that has its candidates judged elsewhere."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from htam_agent.operator import OperatorProfile
from htam_agent.verdict import Ceilings, DeviceFacts, Times
from htam_agent.words import Backend, Policy, Precision, Protocol, Record

if TYPE_CHECKING:
    from htam_agent.settings import Settings
    from htam_agent.task import Task


class TaskFacts(Record):
    """The result of a batch entry without a kernel: the traced operator, the device, its ceilings, the reference's
    times and the floor."""

    schema_: Literal["htam.facts/1"] = Field("htam.facts/1", alias="schema", serialization_alias="schema")
    id: str = ""
    line: int | None = None
    task: str
    task_sha256: str
    backend: Backend
    precision: Precision
    protocol: Protocol
    policy: Policy
    device: DeviceFacts
    ceilings: Ceilings
    operator: OperatorProfile
    baselines: Times
    baseline_reason: str = ""
    """Why a baseline is null; empty when none is."""
    seconds: float = 0.0
    key: str = ""

    def to_json(self) -> str:
        """One line of JSON."""
        return self.model_dump_json(by_alias=True)


def measure_facts(task: Task, settings: Settings) -> TaskFacts:
    """Opens the task's bench, measures the baselines and closes it.

    Raises TaskError, BackendUnavailable and WorkerError as the bench does.
    """
    from htam_agent.services import open_bench, run_options

    started = time.monotonic()
    options = run_options(settings)
    with (
        tempfile.TemporaryDirectory(prefix="htam-facts-") as folder,
        open_bench(task, options, Path(folder)) as bench,
    ):
        baselines = bench.baselines()
        return TaskFacts(
            schema_="htam.facts/1",
            task=task.id,
            task_sha256=task.digest,
            backend=options.backend,
            precision=options.precision,
            protocol=options.protocol,
            policy=bench.policy,
            device=bench.device,
            ceilings=bench.ceilings,
            operator=bench.operator,
            baselines=baselines,
            baseline_reason=bench.baseline_reason,
            seconds=time.monotonic() - started,
        )
