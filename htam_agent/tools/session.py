"""What the three tools of one bench share: builds and times of each file, as long as its content stays the same."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.errors import TaskError
from htam_agent.verdict import CompileResult, ProfileResult, RunResult

if TYPE_CHECKING:
    from htam_agent.tools.base import ToolBench


class ToolSession:
    """Answers by content. A build is remembered, and so are the times that a profile needs; `compile` and `run` asked
    for by name are done anew each time, so that a caller who doubts a figure can measure again."""

    def __init__(self, bench: ToolBench) -> None:
        self.bench = bench
        self._built: dict[str, CompileResult] = {}
        self._judged: dict[str, RunResult] = {}
        # A bench owns one device: calls are made one after the other.
        self._lock = threading.RLock()

    def compile(self, kernel: str) -> CompileResult:
        with self._lock:
            path = Path(kernel)
            digest = content_key(path)
            self._built[digest] = self.bench.compile(path)
            self._judged.pop(digest, None)
            return self._built[digest]

    def run(self, kernel: str) -> RunResult:
        with self._lock:
            digest = content_key(Path(kernel))
            compiled = self._built.get(digest) or self.compile(kernel)
            if not compiled.ok:
                return RunResult(verdict="failed", stage=compiled.stage, reason=compiled.reason or "does not build")
            result = self.bench.run(compiled)
            self._judged[digest] = result
            return result

    def profile(self, kernel: str) -> ProfileResult:
        with self._lock:
            digest = content_key(Path(kernel))
            judged = self._judged.get(digest) or self.run(kernel)
            if judged.verdict != "correct":
                return ProfileResult(
                    bottleneck="unknown",
                    diagnosis=f"Only a correct kernel is profiled; this one is {judged.verdict}: {judged.reason}",
                )
            return self.bench.profile(self._built[digest], judged)


def content_key(path: Path) -> str:
    """SHA-256 of the resolved path and the file's content. Raises TaskError when it cannot be read."""
    try:
        return hashlib.sha256(str(path.resolve()).encode() + b"\0" + path.read_bytes()).hexdigest()
    except OSError as error:
        raise TaskError(
            f"The kernel file {str(path)!r} cannot be read: {error.strerror}.", "Check the path.", "kernel-missing"
        ) from error
