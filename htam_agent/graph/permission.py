"""The user's yes before code is built and run. What was answered lies beside the candidate, and is asked once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.graph.pauses import pause
from htam_agent.judging import file_sha256
from htam_agent.runs.answers import approval
from htam_agent.runs.waiting import Waiting, Wanted
from htam_agent.verdict import Failure
from htam_agent.words import Record

if TYPE_CHECKING:
    from htam_agent.graph.context import Session
    from htam_agent.graph.state import Candidate
    from htam_agent.runs.records import RunOptions
    from htam_agent.task import Task

DECLINED = "its user did not approve it: it was neither built nor run"


class Approval(Record):
    """The answer about one attempt: `candidates/NNNN-I-A/approval.json`."""

    approved: bool
    kernel_sha256: str


def ask_permission(session: Session, task: Task, options: RunOptions, written: list[Candidate]) -> list[Candidate]:
    """The candidates as they are after the answer: as they were, or failed where the user said no.

    A declined one is no fact about its kernel, so nothing of it enters the memory, and it is not mended.
    """
    asked = [candidate for candidate in written if _answer(session, candidate) is None]
    if asked:
        waiting = Waiting(
            kind="code",
            run=str(session.folder.root),
            task=task.id,
            step=asked[0].step,
            text=f"yes or no to building and running the code of step {asked[0].step}",
            candidates=[_shown(session, task, options, candidate) for candidate in asked],
        )
        approved = pause(session.folder, waiting, approval)
        for candidate in asked:
            record = Approval(approved=approved, kernel_sha256=file_sha256(_kernel(session, candidate)))
            session.folder.write(_record(session, candidate), record)
    return [_after(session, candidate) for candidate in written]


def _after(session: Session, candidate: Candidate) -> Candidate:
    answer = _answer(session, candidate)
    if answer is not None and answer.approved:
        return candidate
    failure = Failure(kind="policy", stage="policy", reason=DECLINED)
    return candidate.model_copy(update={"status": "failed", "verdict": "failed", "failure": failure})


def _answer(session: Session, candidate: Candidate) -> Approval | None:
    """What was said about this very text."""
    found = session.folder.read(_record(session, candidate), Approval)
    return found if found and found.kernel_sha256 == file_sha256(_kernel(session, candidate)) else None


def _shown(session: Session, task: Task, options: RunOptions, candidate: Candidate) -> Wanted:
    kernel = _kernel(session, candidate)
    return Wanted(
        id=f"{session.folder.root.name}/{kernel.parent.name}",
        task=task.path,
        task_sha256=task.digest,
        kernel=str(kernel),
        kernel_sha256=file_sha256(kernel),
        backend=options.backend,
        precision=options.precision,
        protocol=options.protocol,
        policy=session.bench.policy,
    )


def _kernel(session: Session, candidate: Candidate) -> Path:
    return session.folder.candidate(candidate.step, candidate.index, candidate.attempt) / "kernel.py"


def _record(session: Session, candidate: Candidate) -> str:
    return str((_kernel(session, candidate).parent / "approval.json").relative_to(session.folder.root))
