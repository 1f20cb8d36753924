"""Running a batch: entries grouped by task, each result on the disk before the next entry begins."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from htam_agent.batch.entries import read_batch
from htam_agent.batch.facts import TaskFacts, measure_facts
from htam_agent.batch.plan import Job, Planner, failed
from htam_agent.batch.results import BatchError, BatchSummary, ResultsFile
from htam_agent.errors import HtamError, InfrastructureError, RunError, UsageError
from htam_agent.judging import Evaluation, evaluate_kernels
from htam_agent.words import Verdict

if TYPE_CHECKING:
    from htam_agent.settings import Settings
    from htam_agent.words import Backend, Protocol

VERDICTS: tuple[Verdict, ...] = ("correct", "wrong", "failed", "quarantined")
R = TypeVar("R", Evaluation, TaskFacts, BatchError)
BROKEN_GROUPS = 2
"""So many groups in a row that the machine's faults ended: then the batch ends with that fault."""


class Batch:
    """A batch file and its results file, owned while the object is open. A context manager.

    `out` None: beside the batch file, `<name>.results.jsonl`. `budget_seconds`: after them no further entry begins.
    `stop` is asked before each entry and ends the batch when it answers true. Entries with a result under the same key
    (the same content and deciding settings) are passed over, each result standing for one entry.

    Raises UsageError when the batch file, and RunError when the results file cannot be used; see ResultsFile.
    """

    def __init__(
        self,
        file: Path,
        settings: Settings,
        *,
        out: Path | None = None,
        budget_seconds: float | None = None,
        protocols: Sequence[Protocol] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        from htam_agent.evaluation.judge import PROTOCOLS

        self._begin = time.monotonic()
        self._file = file
        self._protocols = protocols or PROTOCOLS
        self._budget = budget_seconds
        self._stop = stop
        self._ended: Literal["complete", "budget", "interrupted"] = "complete"
        self._outcomes: Counter[str] = Counter()
        lines = read_batch(file)
        self._out = out or file.with_name(f"{file.stem}.results.jsonl")
        if self._out.exists() and self._out.samefile(file):
            raise RunError("The results file is the batch file itself.", "Give another results file.", "batch-results")
        self._results = ResultsFile(self._out)
        try:
            planner = Planner(file.parent, settings, self._protocols, _chosen)
            self._pending = self._not_done([planner.plan(line) for line in lines])
        except BaseException:
            self._results.close()
            raise
        self._entries = len(lines)
        self._before = len(lines) - len(self._pending)

    def _not_done(self, planned: list[Job | BatchError]) -> list[Job | BatchError]:
        """Each result that is there stands for one entry."""
        pending = []
        for item in planned:
            outcomes = self._results.done.get(item.key)
            if outcomes:
                self._outcomes[outcomes.pop()] += 1
            else:
                pending.append(item)
        return pending

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._results.close()

    def run(self) -> Iterator[Evaluation | TaskFacts | BatchError]:
        """Each result, once it is on the disk: first of lines that cannot be judged, then task by task in the order in
        which tasks first appear, within a task (under the same choices) in the file's order.

        Raises InfrastructureError when the machine failed twice in a row in each of two groups, and RunError when the
        results file cannot be written; what was written stays.
        """
        for item in self._pending:
            if isinstance(item, BatchError):
                yield self._keep(item)
        groups: dict[tuple[object, ...], deque[Job]] = {}
        for item in self._pending:
            if isinstance(item, Job):
                groups.setdefault(item.group, deque()).append(item)
        broken = 0
        for jobs in groups.values():
            if self._over():
                return
            fault = yield from self._group(jobs)
            broken = broken + 1 if fault else 0
            if fault and broken >= BROKEN_GROUPS:
                raise fault

    def _group(
        self, jobs: deque[Job]
    ) -> Generator[Evaluation | TaskFacts | BatchError, None, InfrastructureError | None]:
        """Every job of a group on one bench, opened again after a fault; the machine's fault that ended the group."""
        fruitless = 0
        while jobs and not self._over():
            waiting = len(jobs)
            try:
                yield from self._facts(jobs) if jobs[0].entry.facts else self._on_one_bench(jobs)
            except RunError:
                raise
            except HtamError as error:
                fruitless = fruitless + 1 if len(jobs) == waiting else 0
                job = jobs.popleft()
                yield self._keep(failed(job.line, job.entry, error, job.key))
                if isinstance(error, InfrastructureError) and (fruitless > 1 or waiting == 1):
                    return error
                # A task is at fault: opening a bench for each of its kernels would say the same each time.
                while isinstance(error, UsageError) and fruitless > 1 and jobs and not self._over():
                    job = jobs.popleft()
                    yield self._keep(failed(job.line, job.entry, error, job.key))
        return None

    def _facts(self, jobs: deque[Job]) -> Iterator[TaskFacts]:
        while jobs and not self._over():
            job = jobs[0]
            named = {"id": job.entry.id, "line": job.line, "key": job.key}
            facts = measure_facts(job.task, job.settings).model_copy(update=named)
            jobs.popleft()
            yield self._keep(facts)

    def _on_one_bench(self, jobs: deque[Job]) -> Iterator[Evaluation]:
        first = jobs[0]

        def kernels() -> Iterator[Path]:
            while jobs and not self._over():
                yield jobs[0].kernel

        evaluations = evaluate_kernels(first.task, kernels(), first.settings, self._protocols)
        try:
            for evaluation in evaluations:
                job = jobs.popleft()
                named = {"id": job.entry.id, "kernel": job.entry.kernel, "line": job.line, "key": job.key}
                yield self._keep(evaluation.model_copy(update=named))
        finally:
            evaluations.close()

    def _over(self) -> bool:
        """Whether no further entry may begin."""
        if self._stop():
            self._ended = "interrupted"
        elif self._budget is not None and time.monotonic() - self._begin >= self._budget:
            self._ended = "budget"
        return self._ended != "complete"

    def _keep(self, result: R) -> R:
        self._results.append(result.to_json())
        self._outcomes[_outcome(result)] += 1
        return result

    def summary(self) -> BatchSummary:
        """How the batch stands."""
        now = self._outcomes.total() - self._before
        remaining = self._entries - self._before - now
        return BatchSummary(
            batch=str(self._file),
            out=str(self._out),
            entries=self._entries,
            before=self._before,
            now=now,
            remaining=remaining,
            verdicts={name: self._outcomes[name] for name in VERDICTS if self._outcomes[name]},
            facts=self._outcomes["facts"],
            errors=self._outcomes["error"],
            ended="fault" if remaining and self._ended == "complete" else self._ended,
            repaired_bytes=self._results.repaired_bytes,
            seconds=time.monotonic() - self._begin,
        )


def _outcome(result: Evaluation | TaskFacts | BatchError) -> str:
    """As the results file counts it."""
    return "facts" if isinstance(result, TaskFacts) else getattr(result, "verdict", "error")


def _chosen(wanted: Literal["auto", "cuda", "cpp"]) -> Backend:
    """The backend's name. Raises BackendUnavailable."""
    from htam_agent.backends.registry import choose_backend

    return choose_backend(wanted).name
