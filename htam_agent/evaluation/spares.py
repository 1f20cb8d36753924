"""Spare workers: confined processes with their buffers open that wait for a candidate.

Confinement comes before CUDA starts threads and before a file is known, so a spare is confined to a cell of its own,
made beforehand: a folder that it may read, with a `scratch` folder inside that it may write. The candidate's file and
binaries are put into the cell afterwards, from outside. No process ever sees two candidates.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from htam_agent.backends.nvml import free_memory_share
from htam_agent.errors import TaskError, WorkerError
from htam_agent.evaluation.channel import ChannelError
from htam_agent.evaluation.files import read_plain
from htam_agent.evaluation.judge import MachineFault
from htam_agent.evaluation.messages import Answer, Enter, Order
from htam_agent.evaluation.process import Gone, Hung, Worker
from htam_agent.evaluation.session import Session, confinement_off

ENTER_SECONDS = 60.0
WANTED = {"cuda": 2, "cpp": 1}
"""A second one runs a candidate's kernels replaced by no-ops; on the CPU a fork is cheap."""
ROOMY = 0.2
"""Free part of a device's memory from which spares are kept beside a candidate; each takes about half a gigabyte."""
CANDIDATE_FILE = "candidate.py"


@dataclass
class Spare:
    """A worker in its cell. `answer` is there once it has said that it is confined and ready."""

    worker: Worker
    cell: Path
    log: Path
    terms: tuple[object, ...]
    """What it was set up for; a session with other limits cannot use it."""
    answer: Answer | None = None

    @property
    def scratch(self) -> Path:
        """The only folder that it may write."""
        return self.cell / "scratch"

    def await_ready(self) -> Answer:
        """Its answer to being set up. Raises MachineFault (no byte of a candidate has run yet) or, where memory did not
        suffice, TaskError."""
        if self.answer is None:
            try:
                self.answer = self.worker.hear(Answer, ENTER_SECONDS)
            except (Gone, Hung, ChannelError) as error:
                raise _not_set_up(str(error)) from error
        if not self.answer.ok:
            raise _not_set_up(f"{self.answer.reason} {self.answer.evidence[-500:]}")
        return self.answer

    def ping(self) -> None:
        """Raises MachineFault where it has died, or is about to, since it became ready."""
        try:
            self.worker.ask(Order(ping=True), Answer, ENTER_SECONDS)
        except (Gone, Hung, ChannelError) as error:
            raise _not_set_up(str(error)) from error
        # In a PID namespace the worker outlives the process that was forked for it by some milliseconds.
        if not _lives(self.worker.pid):
            raise _not_set_up("its outer process has ended")

    def end(self) -> int:
        """Kills the process, removes its cell and returns how many processes it left behind."""
        try:
            self.worker.kill()
        finally:
            shutil.rmtree(self.cell, ignore_errors=True)
        return self.worker.left_behind


class Spares:
    """The spare workers of an open bench, `wanted` of them. One that is dead or set up for something else is
    replaced."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._waiting: list[Spare] = []

    @property
    def pids(self) -> list[int]:
        """Their process ids."""
        return [spare.worker.pid for spare in self._waiting]

    def take(self, session: Session) -> Spare:
        """A worker that is ready: a spare one or, where none is left, a new one. Raises MachineFault where not even
        that can be set up."""
        while self._waiting:
            spare = self._waiting.pop(0)
            with contextlib.suppress(MachineFault, TaskError):
                if spare.terms == terms_of(session):
                    spare.await_ready()
                    spare.ping()
                    return spare
            spare.end()
        spare = prepare_spare(session)
        try:
            spare.await_ready()
        except BaseException:
            spare.end()
            raise
        return spare

    def refill(self, session: Session, *, beside: bool = False) -> None:
        """Starts as many as are missing and does not wait for them: they become ready while something is built or
        judged. `beside` a candidate only where the device's memory has room for them."""
        if beside and session.backend.name == "cuda" and not _roomy(session.index):
            return
        while len(self._waiting) < self._wanted:
            self._waiting.append(prepare_spare(session))

    def settle(self) -> None:
        """Waits until nothing starts any more, so that something may be timed; ends what did not start."""
        for spare in tuple(self._waiting):
            try:
                spare.await_ready()
            except (MachineFault, TaskError):
                self._waiting.remove(spare)
                spare.end()

    def close(self) -> None:
        """Ends all of them. The processes may have ended with the zygote already."""
        for spare in self._waiting:
            with contextlib.suppress(WorkerError):
                spare.worker.kill()
            shutil.rmtree(spare.cell, ignore_errors=True)
            spare.log.unlink(missing_ok=True)
        self._waiting.clear()


def _lives(pid: int) -> bool:
    """Whether a process is there and no mere entry of one that has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def _roomy(index: int) -> bool:
    """Whether so much memory is free on the device that a candidate will not miss what the spares' contexts take."""
    free = free_memory_share(index)
    return free is not None and free >= ROOMY


def terms_of(session: Session) -> tuple[object, ...]:
    """What a worker is set up for before a file is known."""
    return session.limits, confinement_off(), tuple(session.descriptors), session.loaded.blueprint


def _not_set_up(why: str) -> MachineFault | TaskError:
    """The machine is at fault, or the task, whose buffers leave no room beside them."""
    if "out of memory" in why.lower() or "OUT_OF_MEMORY" in why:
        return TaskError(
            f"The task is too large for this device: there is no room for a candidate beside it: {why}",
            "Use smaller inputs or a device with more memory.",
            "task-too-large",
        )
    return MachineFault(
        f"The process for a candidate could not be set up: {why}".strip(),
        "Run `htam doctor`. If a layer of confinement is at fault, name it in HTAM_CONFINEMENT_OFF.",
    )


def prepare_spare(session: Session) -> Spare:
    """Forks a worker and tells it to confine itself; does not wait for it."""
    cells = session.folder / "cells"
    cells.mkdir(exist_ok=True)
    cell = Path(tempfile.mkdtemp(prefix="cell-", dir=cells)).resolve()
    cell.chmod(0o755)
    scratch = cell / "scratch"
    scratch.mkdir()
    blueprint = session.loaded.blueprint
    enter = Enter(
        blueprint=blueprint,
        cell=session.cell(scratch, session.limits.total_seconds, cell),
        file=str(cell / CANDIDATE_FILE),
        buffer_sizes=[blueprint.input_bytes, blueprint.state_bytes, blueprint.output_bytes],
    )
    log = session.log(cell, "run")
    worker = session.harness.spawn("candidate", log)
    spare = Spare(worker, cell, log, terms_of(session))
    # Should it be dead already, waiting for its answer says so.
    with contextlib.suppress(ChannelError):
        worker.tell(Order(enter=enter), session.descriptors)
    return spare


def put_file(source: Path, target: Path) -> None:
    """Copies a plain file for others to read. Raises OSError for anything else in its place, links too."""
    data = read_plain(source)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb") as file:
        file.write(data)
    target.chmod(0o755 if target.suffix == ".so" else 0o644)
