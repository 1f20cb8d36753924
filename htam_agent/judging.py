"""`evaluate` as a product by itself: kernel files against a task, one verdict each. batch.py does many tasks."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from htam_agent.errors import UsageError
from htam_agent.verdict import Check, RunResult
from htam_agent.words import Backend, Policy, Precision, Protocol, Record

if TYPE_CHECKING:
    from htam_agent.evaluation.bench import Bench
    from htam_agent.settings import Settings
    from htam_agent.task import Task

READ_LIMIT = 64 << 20
"""Most bytes of a kernel file that are hashed: what is larger is refused by the evaluator, and named by its size."""
BUSY = 1.25
"""Load average over the cores from which on a result says so: this program's own work makes up 1."""


class _Head(Record):
    """What was judged, under which choices."""

    schema_: Literal["htam.evaluate/1"] = Field("htam.evaluate/1", alias="schema", serialization_alias="schema")
    id: str = ""
    """The entry's name in a batch; empty elsewhere."""
    kernel: str
    """The file, as it was given."""
    kernel_sha256: str = ""
    """Of the file's bytes when it was judged; empty when it could not be read."""
    task: str
    task_sha256: str = ""
    """Of the task's file when it was named."""
    backend: Backend
    device: str
    precision: Precision
    protocol: Protocol
    """The protocol that decided `verdict`."""
    policy: Policy


class Evaluation(RunResult, _Head):
    """One kernel's evaluation; the object that `htam evaluate --json` prints, one a line: everything that the evaluator
    answers (RunResult), and what was judged under which choices."""

    key: str = ""
    """In a batch: SHA-256 of all that decides, by which a later run knows that this is done."""
    line: int | None = None
    """In a batch: the line of the entry."""

    def to_json(self) -> str:
        """One line of JSON in the contract's form."""
        return self.model_dump_json(by_alias=True)


def evaluate_kernels(
    task: Task,
    kernels: Iterable[Path],
    settings: Settings,
    protocols: Sequence[Protocol] | None = None,
) -> Generator[Evaluation, None, None]:
    """Judge each file in a process of its own, in order; a bad file is a verdict and never stops the others.

    `kernels` is read one by one, as results are asked for. `protocols` get a verdict besides the one that decides;
    None: all four. One bench is open for as long as the iterator is: close it to end early.

    Raises UsageError when the task, or the machine's backend, is at fault, WorkerError when the machine is.
    """
    from htam_agent.evaluation.bench import evaluate_files
    from htam_agent.evaluation.judge import PROTOCOLS
    from htam_agent.services import open_bench, run_options
    from htam_agent.swapping.chosen import choose

    options = run_options(settings)
    swapped = choose(settings, options.backend, ("compile", "run")).swapped
    current: list[tuple[Path, str]] = []

    def one_by_one() -> Iterator[Path]:
        for kernel in kernels:
            current[:] = [(kernel, file_sha256(kernel))]
            yield kernel

    with tempfile.TemporaryDirectory(prefix="htam-evaluate-") as folder:

        def new() -> Bench:
            return open_bench(task, options, Path(folder), protocols or PROTOCOLS, swapped=swapped)

        results = evaluate_files(new, one_by_one(), deep=settings.deep)
        try:
            for bench, answer in results:
                found = {name: getattr(answer, name) for name in RunResult.model_fields}
                yield Evaluation(
                    **{**found, "checks": [*answer.checks, *machine_checks(), *_not_swapped(settings)]},
                    kernel=str(current[0][0]),
                    kernel_sha256=current[0][1],
                    task=task.id,
                    task_sha256=task.digest,
                    backend=options.backend,
                    device=bench.device.name,
                    precision=options.precision,
                    protocol=options.protocol,
                    policy=bench.policy,
                )
        finally:
            results.close()


def _not_swapped(settings: Settings) -> list[Check]:
    """A note where a run would be judged by another evaluator: single files are judged by the built-in one."""
    choice = settings.tools.evaluator
    if choice in (None, "local"):
        return []
    return [Check(name="evaluator", passed=True, detail=f"the built-in one; tools.evaluator = {choice} serves runs")]


def file_sha256(path: Path) -> str:
    """Of the file's bytes; empty when it is no regular file, cannot be read, or is absurdly large."""
    try:
        if not path.is_file() or path.stat().st_size > READ_LIMIT:
            return ""
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def machine_checks() -> list[Check]:
    """A note when the machine does more than its processors can: intervals widen, and that is no fault of a kernel."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= BUSY * cores:
        return []
    detail = f"load {load:.1f} on {cores} cores: intervals will be wide"
    return [Check(name="machine", passed=True, detail=detail)]


def parse_protocols(text: str) -> tuple[Protocol, ...]:
    """Protocol names separated by commas; an empty text is all four. Raises UsageError for an unknown one."""
    from htam_agent.evaluation.judge import PROTOCOLS

    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in PROTOCOLS]
    if unknown:
        raise UsageError(f"There is no protocol {unknown[0]!r}.", f"Choose from {', '.join(PROTOCOLS)}.", "protocol")
    return tuple(name for name in PROTOCOLS if name in names) or PROTOCOLS
