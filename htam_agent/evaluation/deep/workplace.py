"""Where the deep checks of one candidate happen: its files, the inputs, and a fresh folder for each run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

import htam_agent
from htam_agent.evaluation.confinement import LAYERS, Cell
from htam_agent.evaluation.deep.confined import Run, run_confined
from htam_agent.evaluation.deep.orders import ANSWERS, ORDER, Outcome, RunnerOrder
from htam_agent.evaluation.deep.records import DeepPrepared, ShapeCase
from htam_agent.evaluation.files import open_plain
from htam_agent.evaluation.package_folders import package_folders
from htam_agent.evaluation.session import Session
from htam_agent.evaluation.spares import CANDIDATE_FILE, put_file
from htam_agent.verdict import CompileResult

PACKAGE = Path(htam_agent.__path__[0]).resolve()
ANSWERS_LIMIT = 4 << 20
RUNNER = ("-P", "-m", "htam_agent.evaluation.deep.runner")
INNER_LAYERS = ("landlock",)
"""Under a tool the runner puts these on itself: landlock allows a process's own /proc by its number, which the tool's
child does not have yet when the tool starts."""


class Workplace:
    """A folder of the harness with what the runs may read: the candidate, its binaries (`kernels`) and `data`.

    A context manager: everything is removed at its end. Raises OSError when the candidate's files are no plain files.
    """

    def __init__(self, session: Session, compiled: CompileResult) -> None:
        self._session = session
        cells = session.folder / "cells"
        cells.mkdir(parents=True, exist_ok=True)
        self.root = Path(tempfile.mkdtemp(prefix="deep-", dir=cells)).resolve()
        self.root.chmod(0o755)
        self.data = self.root / "data"
        self.data.mkdir()
        # Python lists the folders on its path, and a confined process may not list the one above this package.
        self._package = self.root / "package"
        self._package.mkdir()
        (self._package / PACKAGE.name).symlink_to(PACKAGE)
        source = Path(compiled.folder)
        put_file(source / CANDIDATE_FILE, self.root / CANDIDATE_FILE)
        if compiled.binary:
            put_file(Path(compiled.binary), self.root / Path(compiled.binary).name)
        self._runs = 0

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def run(
        self,
        prepared: DeepPrepared,
        cases: Sequence[ShapeCase],
        seconds: float,
        *,
        kernels: Path | None = None,
        tool: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        readable: Sequence[str] = (),
        device_first: bool = False,
        repeat: int = 1,
        keep: bool = True,
    ) -> tuple[Run, list[Outcome], Path]:
        """Runs the candidate on these cases in a confined process, under `tool` where one is given.

        `kernels`: where its binary is looked for instead of beside it; `readable`, `device_first`: what the tool needs.
        Returns how the process ended, what it told, and the folder where its outputs and the tool's files lie. Raises
        WorkerError when the machine is at fault.
        """
        self._runs += 1
        folder = self.root / f"run-{self._runs}"
        folder.mkdir()
        cell = self._cell(folder, seconds, kernels or self.root, environment or {}, bool(tool))
        cell = cell.model_copy(update={"readable": [*cell.readable, *readable]})
        order = RunnerOrder(
            file=str(self.root / CANDIDATE_FILE),
            data=str(self.data),
            blueprint=self._session.loaded.blueprint,
            init=prepared.init,
            state=prepared.state,
            cases=list(cases),
            cell=self._inner(cell) if tool else None,
            device_first=device_first,
            repeat=repeat,
            keep=keep,
        )
        (folder / ORDER).write_text(order.model_dump_json(), encoding="utf-8")
        log = self.root / f"run-{self._runs}.log"
        run = run_confined([*tool, sys.executable, *RUNNER], cell, seconds, log)
        return run, read_answers(folder / ANSWERS), folder

    def confined(self, command: Sequence[str], folder: Path, seconds: float) -> Run:
        """Runs another command, a compiler, that works in `folder`."""
        cell = self._session.cell(folder, seconds).model_copy(update={"room": 0})  # what it makes is needed afterwards
        return run_confined(command, cell, seconds, self.root / f"{folder.name}.log")

    def _cell(self, folder: Path, seconds: float, kernels: Path, environment: dict[str, str], under_tool: bool) -> Cell:
        cell = self._session.cell(folder, seconds, kernels)
        path = os.pathsep.join([str(self._package), *package_folders()])
        threads = str(self._session.loaded.blueprint.threads)
        changes: dict[str, object] = {
            "environment": {**cell.environment, "PYTHONPATH": path, "OMP_NUM_THREADS": threads, **environment},
            "readable": [*cell.readable, str(self.root), str(PACKAGE)],
            "off": [*cell.off, *(INNER_LAYERS if under_tool else ())],
            "room": 0,  # its answers and a tool's files are read after its end
            # A sanitizer reserves terabytes of addresses.
            "memory_bytes": 0 if environment or under_tool else cell.memory_bytes,
        }
        return cell.model_copy(update=changes)

    def _inner(self, cell: Cell) -> Cell:
        asked_off = [layer for layer in cell.off if layer not in INNER_LAYERS]
        off = [layer for layer in LAYERS if layer not in INNER_LAYERS]
        return cell.model_copy(update={"off": [*off, *(x for x in asked_off if x not in off)]})


def read_answers(path: Path) -> list[Outcome]:
    """What a runner told, as far as it is well formed; nothing where it told nothing."""
    try:
        with open(open_plain(path, os.O_RDONLY), "rb") as file:
            lines = file.read(ANSWERS_LIMIT).splitlines()
    except OSError:
        return []
    outcomes = []
    for line in lines:
        try:
            outcomes.append(Outcome.model_validate_json(line))
        except ValidationError:
            break
    return outcomes
