"""Candidates that another machine judges: what it is asked, and what its answers become.

The other machine runs `htam evaluate --batch`. What it measures of the task comes first (facts), then verdicts, a
step's candidates in one exchange. An answer is stored under the names that this machine's own evaluator would use, so
that the rest of the graph does not know the difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from htam_agent.batch.facts import TaskFacts
from htam_agent.errors import InfrastructureError, TaskError
from htam_agent.graph.pauses import pause
from htam_agent.judging import Evaluation, file_sha256
from htam_agent.runs.answers import Line, facts_for, given_results, verdicts_for
from htam_agent.runs.folder import RunFolder
from htam_agent.runs.waiting import WAITING_FILE, Waiting, Wanted
from htam_agent.verdict import CompileResult, ProfileResult, RunResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from htam_agent.graph.context import Session
    from htam_agent.graph.state import Candidate
    from htam_agent.operator import OperatorProfile
    from htam_agent.runs.records import RunOptions
    from htam_agent.task import Task
    from htam_agent.verdict import Times
    from htam_agent.words import Backend, Precision, Protocol

FACTS_FILE = "facts.json"


class ExternalBench:
    """A task that another machine judges, as far as its facts tell. Nothing runs here: a build is a look at the text,
    and a run is the verdict that lies beside the file."""

    def __init__(self, facts: TaskFacts) -> None:
        self.operator, self.device, self.ceilings, self.policy = (
            facts.operator, facts.device, facts.ceilings, facts.policy,
        )  # fmt: skip
        self._facts = facts

    def open(self) -> OperatorProfile:
        return self.operator

    def baselines(self) -> Times:
        return self._facts.baselines

    def use_baselines(self, times: Times) -> None:
        """They are the facts' own."""

    def close(self) -> None:
        """There is no process."""

    def compile(self, source: Path) -> CompileResult:
        """Holds the text against the policy; the build itself happens where it is judged."""
        from htam_agent.evaluation.policy import inspect_source

        backend = self._facts.backend
        found = inspect_source(source.read_text(encoding="utf-8"), backend, self.policy)
        if found.reason:
            reason = found.reason
            return CompileResult(ok=False, backend=backend, stage=found.stage, reason=reason, log=reason)
        folder = str(source.parent)
        return CompileResult(ok=True, backend=backend, deferred=True, folder=folder, reason="built where it is judged")

    def run(self, compiled: CompileResult, *, timing: bool = True) -> RunResult:
        """The verdict that was given. Raises InfrastructureError where there is none yet."""
        folder = Path(compiled.folder)
        found = RunFolder(folder).read("run.json", RunResult)
        if found is None:
            raise InfrastructureError(
                f"There is no verdict on {str(folder / 'kernel.py')!r} yet.",
                "Resume the run with it.",
                "verdicts-missing",
            )
        return found

    def profile(self, compiled: CompileResult, run: RunResult) -> ProfileResult:
        """Where the candidate stands, from the times of its verdict."""
        from htam_agent.tools.diagnose import diagnose

        return diagnose(
            self.operator,
            run.times_ms,
            self.ceilings,
            self.device,
            compiled.kernels,
            run.launches,
            precision=self._facts.precision,
            run=run,
        )


def open_external(task: Task, options: RunOptions, folder: Path) -> ExternalBench:
    """The bench of a run whose facts are known; `folder` is the scratch folder of the run's own.

    Raises InfrastructureError when they are not.
    """
    facts = RunFolder(folder.parent).read(FACTS_FILE, TaskFacts)
    if facts is None:
        raise InfrastructureError(f"{task.name}: the facts of the other machine are gone.", "Start the run again.")
    return ExternalBench(facts)


def await_facts(folder: RunFolder, task: Task, options: RunOptions) -> None:
    """Waits for the other machine's facts of the task, unless they are there.

    Raises TaskError for a task that another machine cannot be given.
    """
    if folder.path(FACTS_FILE).exists():
        return
    if task.kind == "module":
        raise TaskError(
            "A task made from a live module cannot be judged by another machine.",
            "Write the module into a file with Model and get_inputs.",
            "task-external",
        )
    text = f"what {task.name} takes on the machine that will judge: its operator, baselines and floor"
    wanted = Wanted(
        id=f"{folder.root.name}/facts",
        compile_baseline=options.compile_baseline,
        policy=options.policy,
        **_common(task, options),
    )
    _await(folder, Waiting(kind="facts", run=str(folder.root), task=task.id, text=text, candidates=[wanted]))


def await_verdicts(session: Session, task: Task, options: RunOptions, candidates: list[Candidate]) -> None:
    """Waits for verdicts on those of the candidates that have none."""
    folders = [session.folder.candidate(one.step, one.index, one.attempt) for one in candidates]
    wanted = [_wanted(session, task, options, folder) for folder in folders if not (folder / "run.json").exists()]
    if wanted:
        names = ", ".join(Path(one.kernel).parent.name for one in wanted)
        _judge(session, task, candidates[0].step, f"verdicts on the candidates of the step: {names}", wanted)


def await_final(session: Session, task: Task, options: RunOptions, step: int, folder: Path) -> None:
    """Waits for another verdict on the candidate in `folder`, measured anew and with the deep checks."""
    if (folder / "final.json").exists():
        return
    wanted = _wanted(session, task, options, folder)
    deep = options.deep or options.backend == "cuda"
    again = wanted.model_copy(update={"id": f"{wanted.id}/final", "deep": deep})
    _judge(session, task, step, f"another verdict on {folder.name}, the best so far, measured anew", [again])


def _judge(session: Session, task: Task, step: int, text: str, wanted: list[Wanted]) -> None:
    run = str(session.folder.root)
    _await(
        session.folder,
        Waiting(kind="verdicts", run=run, task=task.id, step=step, text=text, candidates=wanted),
    )


def _await(folder: RunFolder, waiting: Waiting) -> None:
    def accept(given: object) -> None:
        store_results(folder, waiting, given_results(given))

    pause(folder, waiting, accept)


def store_results(folder: RunFolder, waiting: Waiting, lines: Sequence[Line]) -> None:
    """Stores the answers to what the run waits for under the names that this machine's evaluator would use; the node
    that waits finds them there. All are looked at before any is stored.

    Raises RunError when one is missing or is about something else; nothing is stored then.
    """
    if waiting.kind == "facts":
        folder.write(FACTS_FILE, facts_for(waiting, lines))
    else:
        _store_verdicts(folder, verdicts_for(waiting, lines))
    folder.path(WAITING_FILE).unlink(missing_ok=True)


def _store_verdicts(folder: RunFolder, verdicts: Mapping[str, Evaluation]) -> None:
    for name, verdict in verdicts.items():
        attempt, _, final = name.partition("/")[2].partition("/")
        fields = {field: getattr(verdict, field) for field in RunResult.model_fields}
        folder.write(f"candidates/{attempt}/{'final' if final else 'run'}.json", RunResult(**fields))


def _wanted(session: Session, task: Task, options: RunOptions, folder: Path) -> Wanted:
    kernel = folder / "kernel.py"
    return Wanted(
        id=f"{session.folder.root.name}/{folder.name}",
        kernel=str(kernel),
        kernel_sha256=file_sha256(kernel),
        policy=session.bench.policy,
        compile_baseline=options.compile_baseline,
        device=session.bench.device.name,
        **_common(task, options),
    )


class _Common(TypedDict):
    task: str
    task_sha256: str
    backend: Backend
    precision: Precision
    protocol: Protocol


def _common(task: Task, options: RunOptions) -> _Common:
    """What each question names."""
    spelled = task.symbol if task.kind == "factory" else task.path
    named = spelled if task.kind == "factory" or task.symbol == "Model" else f"{task.path}:{task.symbol}"
    return _Common(
        task=named,
        task_sha256=task.digest,
        backend=options.backend,
        precision=options.precision,
        protocol=options.protocol,
    )
