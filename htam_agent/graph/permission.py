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
CHANGED = "its file was changed after it was shown to its user: it was neither built nor run"


class Approval(Record):
    """The answer about one attempt: `candidates/NNNN-I-A/approval.json`."""

    approved: bool
    kernel_sha256: str


class Shown(Record):
    """What was shown of one attempt before anything was answered: `candidates/NNNN-I-A/shown.json`. The text of an
    attempt never changes by itself, so it is written once."""

    kernel_sha256: str


def ask_permission(session: Session, task: Task, options: RunOptions, written: list[Candidate]) -> list[Candidate]:
    """The candidates as they are after the answer: as they were, or failed where the user said no or the file is
    not the one that was shown.

    A declined one is no fact about its kernel, so nothing of it enters the memory, and it is not mended.
    """
    asked = [candidate for candidate in written if _answer(session, candidate) is None]
    if asked:
        shown = [_shown(session, task, options, candidate) for candidate in asked]
        waiting = Waiting(
            kind="code",
            run=str(session.folder.root),
            task=task.id,
            step=asked[0].step,
            text=f"yes or no to building and running the code of step {asked[0].step}",
            candidates=shown,
        )
        approved = pause(session.folder, waiting, approval)
        for candidate, one in zip(asked, shown, strict=True):
            # The node runs again from its top to take an answer: by then another text may lie there.
            record = Approval(approved=approved, kernel_sha256=one.kernel_sha256)
            session.folder.write(_beside(session, candidate, "approval.json"), record)
    return [_after(session, candidate) for candidate in written]


def _after(session: Session, candidate: Candidate) -> Candidate:
    answer = _answer(session, candidate)
    if answer is not None and answer.approved:
        return candidate
    reason = DECLINED if answer is not None else CHANGED
    failure = Failure(kind="policy", stage="policy", reason=reason)
    return candidate.model_copy(update={"status": "failed", "verdict": "failed", "failure": failure})


def _answer(session: Session, candidate: Candidate) -> Approval | None:
    """What was said about this very text."""
    found = session.folder.read(_beside(session, candidate, "approval.json"), Approval)
    return found if found and found.kernel_sha256 == file_sha256(_kernel(session, candidate)) else None


def _shown(session: Session, task: Task, options: RunOptions, candidate: Candidate) -> Wanted:
    """The candidate as it was when it was shown first."""
    kernel = _kernel(session, candidate)
    name = _beside(session, candidate, "shown.json")
    shown = session.folder.read(name, Shown)
    if shown is None:
        shown = Shown(kernel_sha256=file_sha256(kernel))
        session.folder.write(name, shown)
    return Wanted(
        id=f"{session.folder.root.name}/{kernel.parent.name}",
        task=task.path,
        task_sha256=task.digest,
        kernel=str(kernel),
        kernel_sha256=shown.kernel_sha256,
        backend=options.backend,
        precision=options.precision,
        protocol=options.protocol,
        policy=session.bench.policy,
    )


def _kernel(session: Session, candidate: Candidate) -> Path:
    return session.folder.candidate(candidate.step, candidate.index, candidate.attempt) / "kernel.py"


def _beside(session: Session, candidate: Candidate, name: str) -> str:
    return str((_kernel(session, candidate).parent / name).relative_to(session.folder.root))
