"""The process that searches for witnesses, started again when a mutant takes it down."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.evaluator.files import Backend

CHILD = Path(__file__).with_name("witness_child.py")
START_SECONDS = 120.0


class Witness:
    """Asks one mutant after the other. A context manager."""

    def __init__(self, backend: Backend, seconds: float = 20.0) -> None:
        self._device = "cuda" if backend == "cuda" else "cpu"
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._fresh = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def look(self, question: dict[str, Any]) -> dict[str, Any]:
        """Whether the mutant differs. One that ends or hangs a process in which nothing ran before it is witnessed by
        that; in a process that others may have damaged it is tried once more."""
        answer = self._ask(question)
        if answer.get("raised") and self._device == "cuda":
            self.close()  # a CUDA error stays in its process
        if "died" not in answer:
            return answer
        if not self._fresh:
            self.close()
            answer = self._ask(question)
        self.close()
        return {"witnessed": True, "own_sizes": True, "how": answer["died"]} if "died" in answer else answer

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self._fresh = self._process is None
        if self._process is None:
            command = [sys.executable, str(CHILD), "--device", self._device]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            if "ready" not in self._read(START_SECONDS):
                raise RuntimeError("The process that searches for witnesses does not start.")
        assert self._process.stdin is not None, "a pipe"
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"died": "its process is gone"}
        return self._read(self._seconds)

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None, "started"
        assert self._process.stdout is not None, "a pipe"
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not ready:
            return {"died": f"no answer within {seconds:g} s"}
        line = self._process.stdout.readline()
        if not line:
            return {"died": f"its process ended with {self._process.wait()}"}
        return dict(json.loads(line))

    def close(self) -> None:
        """Ends the process."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process = None
