"""Commands under the supervisor: real processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from htam_agent.evaluation.confinement import Cell
from htam_agent.evaluation.deep.confined import Run, run_confined


def run(folder: Path, code: str, seconds: float = 20.0) -> Run:
    place = folder / "place"
    place.mkdir()
    cell = Cell(folder=str(place), environment={"PATH": os.defpath}, file_bytes=1 << 20)
    return run_confined([sys.executable, "-I", "-c", code], cell, seconds, folder / "log")


def test_a_command_works_in_its_folder_with_an_empty_environment(tmp_path: Path) -> None:
    ran = run(tmp_path, "import os; print(os.getcwd(), sorted(os.environ)); open('made', 'w').write('x')")
    assert ran.ok, ran.output
    assert str(tmp_path / "place") in ran.output
    assert "HTAM" not in ran.output
    assert (tmp_path / "place" / "made").read_text() == "x"
    assert "no-network" in ran.ended.active or any("no-network" in line for line in ran.ended.missing)


@pytest.mark.parametrize(
    ("code", "words"),
    [("raise SystemExit(7)", "code 7"), ("import os; os.kill(os.getpid(), 11)", "SIGSEGV")],
)
def test_its_end_is_told(tmp_path: Path, code: str, words: str) -> None:
    ran = run(tmp_path, code)
    assert not ran.ok
    assert words in ran.in_words()


def test_a_command_that_is_not_there_is_an_end_like_another(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    cell = Cell(folder=str(place), environment={"PATH": os.defpath})
    ran = run_confined(["/nonexistent/tool"], cell, 10.0, tmp_path / "log")
    assert not ran.ok
    assert "cannot run /nonexistent/tool" in ran.output


def test_time_is_kept_and_nothing_is_left(tmp_path: Path) -> None:
    mark = f"htam-test-{os.getpid()}-{time.monotonic_ns()}"
    fork = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)\n"
    begin = time.monotonic()
    ran = run(tmp_path, f"{fork}time.sleep(60)  # {mark}", seconds=1.0)
    assert ran.ended.timed_out
    assert "longer than 1 s" in ran.in_words()
    assert time.monotonic() - begin < 30
    assert not [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if mark in _read(entry)]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
