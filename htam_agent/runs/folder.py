"""The run's folder: everything a run knows lies here under stable names, so that a killed run goes on exactly.

    run.json                    task, options, settings, versions
    task.pickle                 a task that was given as a live module
    facts.json                  of the machine that judges, where that is another one
    waiting.json                what the run waits for, while it does
    operator.json               the traced operator
    baselines.json              reference times and the floor
    directions/0001-0.json      what was chosen for a step, before it was taken (step-opening)
    steps/0001.json             one finished step
    candidates/0001-0-0/        kernel.py, code.json, compile.json, run.json, profile.json  (step-index-attempt)
    bench/                      the evaluator's scratch: builds, logs, the candidates' own folders
    checkpoints.sqlite          the graph's own state
    lock                        held by the process that drives the run
    kernel.py, result.json, report.md
    stopped.json                the result of a run that was stopped before its own end, once it goes on

Every file is written to a temporary name and renamed: a reader sees all of it or none.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import time
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from htam_agent.errors import RunError
from htam_agent.runs.records import RunManifest

T = TypeVar("T", bound=BaseModel)


def write_atomically(path: Path, text: str) -> None:
    """Write `text` under a temporary name in the same folder, then rename.

    Raises RunError when the folder cannot be written or the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True) if path.parent.is_dir() else None
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> RunError:
    """The sentence for a folder that does not take a file."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(
            f"The disk is full: {str(path)!r} could not be written.",
            "Free some space, or give another folder (the setting `out`); what was written before is kept.",
            "disk-full",
        )
    return RunError(
        f"The folder {str(path.parent)!r} cannot be written ({error.strerror}).",
        "Give a writable folder (the setting `out` or `runs`).",
        "folder-not-writable",
    )


def run_exists(root: Path) -> RunError:
    """The sentence for a folder that holds a run when a new one was to begin in it."""
    return RunError(
        f"The folder {str(root)!r} already holds a run.",
        f"Go on with `htam resume {root}`, or give another folder (the setting `out`).",
        "run-exists",
    )


class RunFolder:
    """Typed access to one run's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @classmethod
    def create(cls, root: Path) -> RunFolder:
        """Make the folder (it may exist, empty).

        Raises RunError when it cannot be written or already holds a run.
        """
        folder = cls(root)
        try:
            folder.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder.root / "run.json", error) from error
        if folder.path("run.json").exists():
            raise run_exists(root)
        probe = folder.path(f".probe-{os.getpid()}")
        write_atomically(probe, "")
        probe.unlink()
        return folder

    def path(self, name: str) -> Path:
        return self.root / name

    def manifest(self) -> RunManifest:
        """What the run was started with.

        Raises RunError when run.json is gone or corrupt.
        """
        found = self.read("run.json", RunManifest)
        if found is None:
            raise RunError(f"There is no run in {str(self.root)!r}.", "`htam runs` lists the runs.", "run-missing")
        return found

    @property
    def key(self) -> str:
        """The run's name and what tells it from another run of that name: a folder that a user names is used again, and
        two machines may use the same name. A resumed run has the same key.

        Raises RunError when run.json is gone or corrupt.
        """
        manifest = self.manifest()
        told = f"{self.root.resolve()}\0{manifest.created}\0{manifest.task.id}\0{manifest.options.seed}"
        return f"{self.root.name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"

    def scratch(self) -> Path:
        """The evaluator's folder, made when missing.

        Raises RunError when it cannot be.
        """
        path = self.root / "bench"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(path / "any", error) from error
        return path

    def candidate(self, step: int, index: int, attempt: int) -> Path:
        """Folder of one attempt at one candidate."""
        return self.root / "candidates" / f"{step:04d}-{index}-{attempt}"

    def write(self, name: str, record: BaseModel) -> None:
        """Store a record as JSON under `name`, atomically."""
        write_atomically(self.path(name), record.model_dump_json(by_alias=True, indent=1) + "\n")

    def move(self, name: str, to: str) -> None:
        """Give a file another name, in the place of what has that name.

        Raises RunError when the folder cannot be written.
        """
        try:
            self.path(name).replace(self.path(to))
        except OSError as error:
            raise write_error(self.path(to), error) from error

    def read(self, name: str, kind: type[T]) -> T | None:
        """The record under `name`, or None where there is none.

        Raises RunError when the file is there but is not such a record.
        """
        path = self.path(name)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{str(path)!r} cannot be read: {error}.", "Check the folder.", "run-corrupt") from error
        try:
            return kind.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            raise RunError(
                f"{str(path)!r} is corrupt: {first['msg']} at {'.'.join(map(str, first['loc'])) or 'the top'}.",
                "Remove the file if its content can be made again (a step or candidate), or start a new run.",
                "run-corrupt",
            ) from error

    def steps(self) -> list[Path]:
        """Files of the finished steps, in order."""
        return sorted(self.path("steps").glob("[0-9]*.json"))


def new_run_folder(runs: Path, task: str, token: str = "") -> Path:
    """A fresh folder name under `runs`: sortable by time, readable, unique by its end (`token`, or a random one)."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", task)[:40].strip("-.") or "task"
    return runs / f"{stamp}-{name}-{token or secrets.token_hex(2)}"


def find_run(runs: Path, name: str) -> RunFolder:
    """The run of this name under `runs`, or at this path; "last" is the newest.

    Raises RunError when there is none.
    """
    if name == "last":
        found = list_runs(runs)
        if found:
            return found[-1]
        raise RunError(f"There are no runs in {str(runs)!r}.", "Start one with `htam optimize TASK`.", "run-missing")
    for path in (Path(name), runs / name):
        if (path / "run.json").is_file():
            return RunFolder(path)
    raise RunError(f"There is no run at {name!r} nor in {str(runs)!r}.", "`htam runs` lists the runs.", "run-missing")


def list_runs(runs: Path) -> list[RunFolder]:
    """All runs under `runs`, oldest first."""
    if not runs.is_dir():
        return []
    return [RunFolder(path.parent) for path in sorted(runs.glob("*/run.json"))]
