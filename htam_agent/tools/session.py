"""What the three tools of one bench share: builds and times of each file, as long as its content stays the same."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.errors import TaskError
from htam_agent.verdict import CompileResult, ProfileResult, RunResult

if TYPE_CHECKING:
    from htam_agent.tools.base import ToolBench


class ToolSession:
    """Answers by content. A build is remembered, and so are the times that a profile needs; `compile` and `run` asked
    for by name are done anew each time, so that a caller who doubts a figure can measure again. Calls may come from
    several threads: files are built side by side, and what is measured has the bench for itself."""

    def __init__(self, bench: ToolBench) -> None:
        self.bench = bench
        self._built: dict[str, CompileResult] = {}
        self._judged: dict[str, RunResult] = {}
        self._turns = Turns()

    def compile(self, kernel: str) -> CompileResult:
        path = Path(kernel)
        digest = content_key(path)
        with self._turns.beside(file_key(path)):
            self._built[digest] = self.bench.compile(path)
            self._judged.pop(digest, None)
            return self._built[digest]

    def run(self, kernel: str) -> RunResult:
        with self._turns.alone():
            return self._run(kernel)

    def profile(self, kernel: str) -> ProfileResult:
        with self._turns.alone():
            digest = content_key(Path(kernel))
            judged = self._judged.get(digest) or self._run(kernel)
            if judged.verdict != "correct":
                return ProfileResult(
                    bottleneck="unknown",
                    diagnosis=f"Only a correct kernel is profiled; this one is {judged.verdict}: {judged.reason}",
                )
            return self.bench.profile(self._built[digest], judged)

    def _run(self, kernel: str) -> RunResult:
        digest = content_key(Path(kernel))
        if digest not in self._built:
            self._built[digest] = self.bench.compile(Path(kernel))
        compiled = self._built[digest]
        if not compiled.ok:
            return RunResult(verdict="failed", stage=compiled.stage, reason=compiled.reason or "does not build")
        self._judged[digest] = self.bench.run(compiled)
        return self._judged[digest]


class Turns:
    """Who has a bench: any number of builds of different files side by side, or one measurement alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._building: set[str] = set()
        self._measuring = False

    @contextmanager
    def beside(self, key: str) -> Iterator[None]:
        """A build's turn. The same file is not built twice at once: its two builds would share a folder."""
        with self._changed:
            self._changed.wait_for(lambda: not self._measuring and key not in self._building)
            self._building.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._building.discard(key)
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A measurement's turn."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._measuring or self._building))
            self._measuring = True
        try:
            yield
        finally:
            with self._changed:
                self._measuring = False
                self._changed.notify_all()


def content_key(path: Path) -> str:
    """SHA-256 of the resolved path and the file's content. Raises TaskError when it cannot be read."""
    return hashlib.sha256(str(path.resolve()).encode() + b"\0" + _content(path)).hexdigest()


def file_key(path: Path) -> str:
    """SHA-256 of the file's content, wherever it lies. Raises TaskError when it cannot be read."""
    return hashlib.sha256(_content(path)).hexdigest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TaskError(
            f"The kernel file {str(path)!r} cannot be read: {error.strerror}.", "Check the path.", "kernel-missing"
        ) from error
