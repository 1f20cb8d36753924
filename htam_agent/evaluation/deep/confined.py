"""The main process's side of the supervisor: run a command confined, and say how it ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

import htam_agent
from htam_agent.errors import WorkerError
from htam_agent.evaluation.confinement import Cell
from htam_agent.evaluation.deep.orders import Ended, SupervisorOrder
from htam_agent.evaluation.files import tail
from htam_agent.evaluation.package_folders import package_folders
from htam_agent.evaluation.process import PASSED_ON, describe_exit

SPARE_SECONDS = 20.0
"""The supervisor keeps the limit itself; this much later it counts as dead."""
LOG_BYTES = 256 << 10


@dataclass(frozen=True)
class Run:
    """A confined command that has ended, and the end of what it printed."""

    ended: Ended
    output: str
    seconds: float

    @property
    def ok(self) -> bool:
        """It ended by itself with code 0."""
        return self.ended.status == 0 and not self.ended.timed_out

    def in_words(self) -> str:
        """Why it is not ok."""
        if self.ended.timed_out:
            return f"it took longer than {self.seconds:g} s and was stopped"
        if os.WIFEXITED(self.ended.status):
            return f"it exited with code {os.WEXITSTATUS(self.ended.status)}"
        return f"it was {describe_exit(self.ended.status)}"


def python_path() -> str:
    """Where this package and what it needs lie: it need not be installed."""
    return os.pathsep.join([str(Path(htam_agent.__path__[0]).parent), *package_folders()])


def run_confined(command: Sequence[str], cell: Cell, seconds: float, log: Path) -> Run:
    """Runs `command` in `cell` for at most `seconds`, its output into `log`; every process of it has ended afterwards.

    Raises WorkerError when the supervisor itself fails.
    """
    order = SupervisorOrder(command=list(command), cell=cell, seconds=seconds, log=str(log))
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment["PYTHONPATH"] = python_path()
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(order.model_dump_json())
        file.flush()
        try:
            ran = subprocess.run(
                [sys.executable, "-P", "-m", "htam_agent.evaluation.deep.supervisor", file.name],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds + SPARE_SECONDS,
                check=False,
                start_new_session=True,
            )
            ended = Ended.model_validate_json(ran.stdout)
        except (subprocess.TimeoutExpired, ValidationError) as error:
            words = ran.stderr.strip()[-500:] if isinstance(error, ValidationError) else "it did not answer"
            raise WorkerError(
                f"The process that starts a deep check failed: {words}", "Run `htam doctor`.", "deep"
            ) from error
    return Run(ended=ended, output=tail(log, LOG_BYTES), seconds=seconds)
