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
from dataclasses import dataclass, field
from pathlib import Path

from htam_agent.evaluation.channel import ChannelError
from htam_agent.evaluation.files import open_plain
from htam_agent.evaluation.judge import MachineFault
from htam_agent.evaluation.messages import Answer, Enter, Order
from htam_agent.evaluation.process import Gone, Hung, Worker
from htam_agent.evaluation.session import Session

ENTER_SECONDS = 60.0
CANDIDATE_FILE = "candidate.py"


@dataclass
class Spare:
    """A worker in its cell. `answer` is there once it has said that it is confined and ready."""

    worker: Worker
    cell: Path
    log: Path
    enter: Enter
    answer: Answer | None = field(default=None)

    @property
    def scratch(self) -> Path:
        """The only folder that it may write."""
        return self.cell / "scratch"

    def await_ready(self) -> Answer:
        """Its answer to being set up. Raises MachineFault: no byte of a candidate has run yet."""
        if self.answer is None:
            try:
                self.answer = self.worker.hear(Answer, ENTER_SECONDS)
            except (Gone, Hung, ChannelError) as error:
                raise _not_set_up(str(error)) from error
        if not self.answer.ok:
            raise _not_set_up(f"{self.answer.reason} {self.answer.evidence[-500:]}")
        return self.answer

    def end(self) -> int:
        """Kills the process, removes its cell and returns how many processes it left behind."""
        self.worker.kill()
        shutil.rmtree(self.cell, ignore_errors=True)
        return self.worker.left_behind


def _not_set_up(why: str) -> MachineFault:
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
    spare = Spare(worker, cell, log, enter)
    # Should it be dead already, waiting for its answer says so.
    with contextlib.suppress(ChannelError):
        worker.tell(Order(enter=enter), session.descriptors)
    return spare


def put_file(source: Path, target: Path) -> None:
    """Copies a plain file for others to read. Raises OSError for anything else in its place, links too."""
    with open(open_plain(source, os.O_RDONLY), "rb") as file:
        data = file.read()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb") as file:
        file.write(data)
    target.chmod(0o755 if target.suffix == ".so" else 0o644)
