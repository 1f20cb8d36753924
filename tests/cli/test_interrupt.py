"""Ctrl-C: the object with the way on, at a node boundary, at once, and before there is a run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import ROOT, clean_environment, htam

TASK = ROOT / "tests" / "tasks" / "pointwise_chain.py"


def interrupted(folder: Path, times: int, after: str, *options: str) -> tuple[int, str, str]:
    """Start optimize, send SIGINT `times` times after the first line with `after` on stderr; code, stdout, stderr."""
    command = [sys.executable, "-m", "htam_agent", "optimize", str(TASK), "--backend", "cpp", "--steps", "1", *options]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=clean_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    seen = []
    for time in range(times):
        wanted = after if time == 0 else "Ctrl-C again"
        for line in process.stderr:
            seen.append(line)
            if wanted in line:
                break
        process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=120)
    return process.returncode, out, "".join(seen) + rest


@pytest.mark.parametrize("times", [1, 2])
def test_the_object_says_how_to_go_on(tmp_path: Path, times: int) -> None:
    code, out, err = interrupted(tmp_path, times, "prepare ", "--out", "run", "--json")
    assert code == 130, err
    assert "Traceback" not in err
    answer = json.loads(out.strip().splitlines()[-1])
    assert answer["schema"] == "htam.optimize/1"
    assert answer["error"]["code"] == "interrupted"
    assert f"htam resume {tmp_path / 'run'}" in answer["error"]["remedy"]
    if times == 2:
        resumed = htam("resume", str(tmp_path / "run"), "--json", folder=tmp_path)
        assert resumed.code in (0, 1), resumed.stderr
        assert resumed.last["steps"]


def test_people_read_it_on_stderr(tmp_path: Path) -> None:
    code, out, err = interrupted(tmp_path, 1, "prepare ", "--out", "run")
    assert code == 130
    assert out == ""
    assert f"htam resume {tmp_path / 'run'}" in err


@pytest.mark.parametrize("wrap", ["raise KeyboardInterrupt", "raise typer.Abort() from KeyboardInterrupt()"])
def test_before_there_is_a_run_the_command_is_to_be_started_again(tmp_path: Path, wrap: str) -> None:
    script = (
        "import typer\nfrom htam_agent.cli import app, main\nfrom htam_agent.task import Task\n"
        f"def parse(text):\n    {wrap}\nTask.parse = parse\nmain(['optimize', 'op.py', '--json'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=clean_environment(tmp_path), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    error = json.loads(done.stdout.strip().splitlines()[-1])["error"]
    assert error["code"] == "interrupted"
    assert "again" in error["remedy"]
