"""A candidate enters a worker: a confined process is taken, its files are put there, its model is made."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from htam_agent.errors import WorkerError
from htam_agent.evaluation.files import shorten_log
from htam_agent.evaluation.judge import Subject
from htam_agent.evaluation.messages import Order
from htam_agent.evaluation.session import Session
from htam_agent.evaluation.spares import CANDIDATE_FILE, Spare, put_file
from htam_agent.verdict import CompileResult


@dataclass
class Entered:
    """A candidate in its process. `active` and `missing`: layers of confinement, the missing ones with reasons."""

    session: Session
    compiled: CompileResult
    subject: Subject
    active: list[str]
    missing: list[str]
    spare: Spare
    log: Path
    """What the process prints."""
    clock: str = ""
    """Why its stopwatch is not the native one; empty when it is."""
    renamed: str = ""
    """What its parameters are called where the reference's have other names; empty when all agree."""
    left_behind: int = 0

    def start(self) -> None:
        """Imports the file and constructs its model. Raises Stop when either fails."""
        limits, deferred = self.session.limits, self.compiled.deferred
        seconds = limits.build_seconds if deferred else limits.load_seconds
        self.subject.order(Order(imports=True), "compile" if deferred else "load", seconds)
        self.renamed = self.subject.order(Order(instance=True), "construct", limits.load_seconds).reason

    def leave(self) -> None:
        """Ends the process with all that it started; its log is kept, its cell is not. Twice is fine."""
        self.left_behind = max(self.left_behind, self.spare.end())
        shorten_log(self.log)
        if self.log.is_file() and not self.log.stat().st_size:
            self.log.unlink()


def enter(session: Session, compiled: CompileResult, *, kernels: Path | None = None) -> Entered:
    """The built candidate in a confined process of its own, imported and constructed.

    `kernels`: another folder whose plain files are served as HTAM_KERNEL_DIR in place of the candidate's own binary.
    Whoever gets the process calls `leave`. Raises Stop when the candidate fails and MachineFault when the process
    could not be set up.
    """
    entered = occupy(session, compiled, kernels=kernels)
    try:
        entered.start()
    except BaseException:
        entered.leave()
        raise
    return entered


def occupy(session: Session, compiled: CompileResult, *, kernels: Path | None = None) -> Entered:
    """As `enter`, but nothing of the candidate has run yet: `start` is called by the caller, who wants to know more of
    a failure than its reason. The next spares start beside it: whoever times something calls Session.quiet first."""
    spare = session.spares.take(session)
    try:
        answer = spare.await_ready()
        folder = Path(compiled.folder)
        put_file(folder / CANDIDATE_FILE, spare.cell / CANDIDATE_FILE)
        for file in _binaries(compiled, kernels):
            put_file(file, spare.cell / file.name)
    except BaseException:
        spare.end()
        raise
    # A dead harness is told of by whoever asks something of it, a full disk by who needs the next process.
    with contextlib.suppress(WorkerError, OSError):
        session.spares.refill(session, beside=True)
    log = spare.log.with_name(f"{folder.name}.{spare.log.name}")
    os.replace(spare.log, log)
    subject = Subject(spare.worker, session.limits, session.reference.stages)
    return Entered(session, compiled, subject, answer.active, answer.missing, spare, log, answer.clock)


def _binaries(compiled: CompileResult, kernels: Path | None) -> list[Path]:
    """What a launcher is to find beside its file."""
    if kernels is not None:
        return [path for path in sorted(kernels.iterdir()) if path.is_file() and path.name != CANDIDATE_FILE]
    return [Path(compiled.binary)] if compiled.binary else []
