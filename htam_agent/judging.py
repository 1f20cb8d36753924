"""`evaluate` as a product by itself: kernel files against a task, one verdict each."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from htam_agent.verdict import Check, Interval, Speedups, Times
from htam_agent.words import Backend, Policy, Precision, Protocol, Record, Stage, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from htam_agent.evaluation.bench import Bench
    from htam_agent.settings import Settings
    from htam_agent.task import Task


class Evaluation(Record):
    """One kernel's evaluation; the object that `htam evaluate --json` prints, one a line."""

    schema_: Literal["htam.evaluate/1"] = Field("htam.evaluate/1", alias="schema", serialization_alias="schema")
    kernel: str
    task: str
    backend: Backend
    device: str
    precision: Precision
    protocol: Protocol
    """The protocol that decided `verdict`."""
    policy: Policy
    verdict: Verdict
    stage: Stage
    reason: str = ""
    protocols: dict[Protocol, Verdict] = Field(default_factory=dict)
    speedup: Speedups = Field(default_factory=Speedups)
    interval: Interval | None = None
    faster: bool = False
    times_ms: Times = Field(default_factory=Times)
    checks: list[Check] = Field(default_factory=list)
    confinement: list[str] = Field(default_factory=list)
    confinement_missing: list[str] = Field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> str:
        """One line of JSON in the contract's form."""
        return self.model_dump_json(by_alias=True)


def evaluate_kernels(task: Task, kernels: list[Path], settings: Settings) -> Iterator[Evaluation]:
    """Judge each file in a process of its own; a bad file is a verdict and never stops the others.

    Raises UsageError when the task, or the machine's backend, is at fault.
    """
    from htam_agent.evaluation.bench import evaluate_files
    from htam_agent.evaluation.judge import PROTOCOLS
    from htam_agent.services import open_bench, run_options

    options = run_options(settings)
    with tempfile.TemporaryDirectory(prefix="htam-evaluate-") as folder:

        def new() -> Bench:
            return open_bench(task, options, Path(folder), PROTOCOLS)

        results = evaluate_files(new, kernels)
        for kernel, (bench, answer) in zip(kernels, results, strict=True):
            yield Evaluation(
                kernel=str(kernel),
                task=task.id,
                backend=options.backend,
                device=bench.device.name,
                precision=options.precision,
                protocol=options.protocol,
                policy=bench.policy,
                verdict=answer.verdict,
                stage=answer.stage,
                reason=answer.reason,
                protocols=answer.protocols,
                speedup=answer.speedup,
                interval=answer.interval,
                faster=answer.faster,
                times_ms=answer.times_ms,
                checks=answer.checks,
                confinement=answer.confinement,
                confinement_missing=answer.confinement_missing,
                seconds=answer.seconds,
            )
