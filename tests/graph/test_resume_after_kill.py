"""kill -9 at the end of any node, then `htam resume`: no step counted twice, nothing lost, nothing measured twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.command import ROOT, clean_environment, htam

TASK = ROOT / "tests" / "tasks" / "pointwise_chain.py"
STEPS = 2
FAST, SLOW = ("learn",), ("prepare", "generate", "run", "finish")
NODES = (
    "prepare",
    "select_direction",
    "retrieve_strategies",
    "generate",
    "compile",
    "run",
    "profile",
    "learn",
    "finish",
)


OPTIONS = ("--backend", "cpp", "--steps", str(STEPS), "--seed", "7", "--json")


def killed_at(
    node: str,
    visit: int,
    folder: Path,
    task: Path = TASK,
    options: Sequence[str] = OPTIONS,
    settings: Mapping[str, str] | None = None,
) -> Path:
    """Start a run that dies at the end of this node's `visit`-th call; returns its folder."""
    run = folder / "run"
    script = ROOT / "tests" / "support" / "killed_run.py"
    places = ["--out", str(run), "--memory", str(folder / "memory")]
    done = subprocess.run(
        [sys.executable, str(script), node, str(visit), "optimize", str(task), *options, *places],
        cwd=folder,
        env=clean_environment(folder, **(settings or {})),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    return run


def judged(run: Path) -> dict[str, int]:
    """When each judged attempt's verdict was written (nanoseconds)."""
    return {path.parent.name: path.stat().st_mtime_ns for path in run.glob("candidates/*/run.json")}


def left_over(run: Path) -> list[str]:
    """Processes that still work in the run's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            folder = os.readlink(entry / "cwd")
        except OSError:
            continue
        if str(run) in command or folder.startswith(str(run)):
            found.append(command)
    return found


def _marks(node: str) -> list[pytest.MarkDecorator]:
    if node in FAST:
        return []
    return [pytest.mark.slow if node in SLOW else pytest.mark.exhaustive]


@pytest.mark.parametrize("node", [pytest.param(node, marks=_marks(node)) for node in NODES])
def test_a_killed_run_goes_on_exactly(node: str, tmp_path: Path) -> None:
    visit = 1  # a fast first kernel may end the run at the floor, so a second visit is not certain
    run = killed_at(node, visit, tmp_path)
    deadline = time.monotonic() + 10
    while left_over(run) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_over(run) == [], "the harness outlived the agent"
    before = judged(run)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    answer = htam("resume", str(run), "--json", folder=elsewhere)
    assert answer.code == 0, answer.stderr
    assert list(elsewhere.rglob("*.sqlite3")) == [], "the run's own memory is used, not the one of this folder"
    steps = answer.last["steps"]
    assert isinstance(steps, list)
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    after = judged(run)
    assert {name: after[name] for name in before} == before, "an attempt that was judged is not judged again"
    # One attempt for each candidate, unless a repair asked for more; one that the coder then refused is not judged.
    attempts = [candidate["attempts"] for step in steps for candidate in step["candidates"]]
    assert len(attempts) <= len(after) <= sum(attempts)

    stats = htam("memory", "stats", "--memory", str(tmp_path / "memory"), "--json", folder=tmp_path).last
    assert stats["experiences"] == len(list(run.glob("candidates/*/compile.json"))), "each judged attempt counts once"
    again = htam("resume", str(run), "--json", folder=tmp_path)
    assert json.loads(again.stdout.splitlines()[-1]) == answer.last, "a finished run answers the same again"
