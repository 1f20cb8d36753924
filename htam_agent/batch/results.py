"""The results file: one JSON object a line, appended and synced one by one, owned by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pydantic import Field

from htam_agent.errors import RunError
from htam_agent.words import Record, Verdict

BEGINNING = b'{"schema":"htam.'
"""How every line of ours begins: by it a torn last line is told from somebody else's file."""


class BatchProblem(Record):
    """What was wrong and what to do."""

    code: str
    message: str
    remedy: str


class BatchError(Record):
    """The result of an entry for which there is no verdict. `again`: the machine, not the input, was at fault, so that
    a later run tries it again."""

    schema_: Literal["htam.batch-error/1"] = Field("htam.batch-error/1", alias="schema", serialization_alias="schema")
    id: str = ""
    line: int
    task: str = ""
    kernel: str = ""
    error: BatchProblem
    again: bool = False
    key: str

    def to_json(self) -> str:
        """One line of JSON."""
        return self.model_dump_json(by_alias=True)


class BatchSummary(Record):
    """How a batch stands when the command ends; its last line of stdout with --json. `entries` counts lines that are
    not blank; `before` were done in earlier runs, `now` in this one. `verdicts`, `facts`, `errors` count both."""

    schema_: Literal["htam.batch/1"] = Field("htam.batch/1", alias="schema", serialization_alias="schema")
    batch: str
    out: str
    entries: int
    before: int
    now: int
    remaining: int
    verdicts: dict[Verdict, int] = Field(default_factory=dict)
    facts: int = 0
    """Entries whose result is a task's facts."""
    errors: int = 0
    ended: Literal["complete", "budget", "interrupted", "fault"]
    """`fault`: the machine kept failing on a task, whose other entries were left for later."""
    repaired_bytes: int = 0
    """Length of a torn last line that was cut off before this run's results were appended."""
    seconds: float = 0.0

    def to_json(self) -> str:
        """One line of JSON."""
        return self.model_dump_json(by_alias=True)


class ResultsFile:
    """A results file that this process owns until it is closed. A context manager.

    `done`: what the results that are there came to ("error" or the verdict) by key, without those to be tried again.

    Raises RunError when the file cannot be written, belongs to another process or holds something else than results;
    nothing is changed then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done: dict[str, list[str]] = {}
        self.repaired_bytes = 0
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unusable(f"cannot be written: {error.strerror}") from error
        try:
            self._lock()
            self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the file free."""
        os.close(self._descriptor)

    def append(self, line: str) -> None:
        """Adds one result; it is on the disk when this returns. Raises RunError when it cannot be written, and leaves
        the file as it was before."""
        data = line.encode() + b"\n"
        size = os.fstat(self._descriptor).st_size
        try:
            written = 0
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise self._unusable(f"cannot be written: {error.strerror}") from error

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"Another process is writing the results file {str(self._path)!r}.",
                "Wait for it, or give this run another results file.",
                "batch-locked",
            ) from error

    def _read(self) -> None:
        with open(self._descriptor, "rb", closefd=False) as file:
            *lines, tail = file.read().split(b"\n")
        for number, line in enumerate(lines, start=1):
            self._count(line, number)
        if not tail:
            return
        try:
            self._count(tail, len(lines) + 1)
        except RunError:
            if not (tail.startswith(BEGINNING) or BEGINNING.startswith(tail)):
                raise
            self.repaired_bytes = len(tail)
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - len(tail))
        else:  # whole but for its end of line
            os.write(self._descriptor, b"\n")

    def _count(self, line: bytes, number: int) -> None:
        try:
            value = json.loads(line)
            key, again = str(value["key"]), value.get("again", False)
            facts = value.get("schema") == "htam.facts/1"
            outcome = "error" if "error" in value else "facts" if facts else str(value["verdict"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unusable(f"holds something else than results (line {number})") from error
        if not again:
            self.done.setdefault(key, []).append(outcome)

    def _unusable(self, what: str) -> RunError:
        return RunError(f"The results file {str(self._path)!r} {what}.", "Give another results file.", "batch-results")
