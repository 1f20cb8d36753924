"""Run the real command line in a process of its own, far from the developer's settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    """What the command printed and how it ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def last(self) -> dict[str, object]:
        """The last line of stdout as the contract's one JSON object."""
        return dict(json.loads(self.stdout.strip().splitlines()[-1]))

    @property
    def error(self) -> dict[str, str]:
        """The error object."""
        error = self.last["error"]
        assert isinstance(error, dict)
        return error


def clean_environment(home: Path, **changes: str) -> dict[str, str]:
    """The environment of a stranger: no HTAM_* settings, an empty home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HTAM_", "LANGSMITH", "OPENAI"))}
    return {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "PYTHONPATH": str(ROOT), **changes}


def htam(*arguments: str, folder: Path, timeout: float = 180, **changes: str) -> Answer:
    """`htam ARGUMENTS` in `folder`."""
    done = subprocess.run(
        [sys.executable, "-m", "htam_agent", *arguments],
        cwd=folder,
        env=clean_environment(folder, **changes),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)
