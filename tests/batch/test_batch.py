"""A batch end to end through the command line: every entry once, whatever happens in between."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from htam_agent.schemas import FOLDER
from tests.evaluation.samples import TASK, WRONG, candidate
from tests.support.command import Answer, clean_environment, htam

RESULTS = "batch.results.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "task.py").write_text(TASK, encoding="utf-8")
    (tmp_path / "second.py").write_text(TASK.replace("32, 100", "16, 100"), encoding="utf-8")
    (tmp_path / "kernels" / "good.py").write_text(candidate(), encoding="utf-8")
    (tmp_path / "kernels" / "zeros.py").write_text(WRONG["zeros"], encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


def write(folder: Path, *entries: dict[str, object] | str) -> None:
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    (folder / "batch.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def entry(name: str, kernel: str = "good", task: str = "task.py", **more: object) -> dict[str, object]:
    return {"id": name, "task": task, "kernel": f"kernels/{kernel}.py", **more}


def run(folder: Path, *more: str) -> Answer:
    return htam(
        "evaluate", "--batch", str(folder / "batch.jsonl"), "--backend", "cpp", "--json", *more,
        folder=folder / "elsewhere",
    )  # fmt: skip


def results(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / RESULTS).read_text(encoding="utf-8").splitlines()]


def fits(value: dict[str, object], schema: str) -> None:
    jsonschema.validate(value, json.loads((FOLDER / f"{schema}.json").read_text(encoding="utf-8")))


def test_good_and_bad_entries_each_get_a_result_in_the_documented_order(folder: Path) -> None:
    write(
        folder,
        entry("a"),
        entry("b", "zeros", "second.py", protocol="kernelbench", precision="ieee"),
        "no entry",
        entry("c", "missing"),
        entry("c", "missing"),
        entry("d", task="gone.py"),
        entry("f", backend="cuda") if not Path("/dev/nvidia0").exists() else "no entry",
    )
    answer = run(folder)
    found = results(folder)
    assert [value["line"] for value in found] == [3, 6, 7, 1, 4, 5, 2], answer.stderr
    assert answer.code == (3 if not Path("/dev/nvidia0").exists() else 2)
    verdicts = {value["id"]: value.get("verdict") for value in found if value["id"]}
    assert verdicts == {"a": "correct", "b": "wrong", "c": "failed", "d": None, "f": None}
    by_id = {value["id"]: value for value in found}
    assert by_id["b"]["protocol"] == "kernelbench"
    assert by_id["b"]["precision"] == "ieee"
    assert by_id["a"]["kernel"] == "kernels/good.py"
    for value in found:
        fits(value, "batch-error" if "error" in value else "evaluate")
    *printed, summary = [json.loads(line) for line in answer.stdout.splitlines()]
    assert printed == found
    fits(summary, "batch")
    assert (summary["entries"], summary["now"], summary["remaining"]) == (7, 7, 0)

    # Nothing is judged twice; what the machine could not do is tried again, what changed is judged anew.
    again = run(folder)
    assert [json.loads(line)["line"] for line in again.stdout.splitlines()[:-1]] == ([7] if answer.code == 3 else [])
    (folder / "kernels" / "good.py").write_text(candidate() + "\n# changed\n", encoding="utf-8")
    changed = run(folder, "--protocols", "strict", "--budget-seconds", "0")
    assert changed.code == 1
    assert changed.last["ended"] == "budget"
    assert changed.last["remaining"] == 4


def test_a_batch_that_is_killed_and_resumed_judges_every_entry_once(folder: Path) -> None:
    count = 40
    write(folder, *(entry(f"e{number}", ("zeros", "missing")[number % 2]) for number in range(count)))
    command = [sys.executable, "-m", "htam_agent", "evaluate", "--batch", "batch.jsonl", "--backend", "cpp"]
    process = subprocess.Popen(
        command, cwd=folder, env=clean_environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: lines_in(folder) >= 2, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with open(folder / RESULTS, "ab") as file:  # as a machine that lost its power in the middle of a write leaves it
        file.write(b'{"schema":"htam.evaluate/1","id":"e9","ker')
    answer = run(folder)
    assert answer.code == 0, answer.stderr
    assert answer.last["repaired_bytes"] == 42
    assert Counter(str(value["id"]) for value in results(folder)) == {f"e{number}": 1 for number in range(count)}


def lines_in(folder: Path) -> int:
    return (folder / RESULTS).read_bytes().count(b"\n") if (folder / RESULTS).exists() else 0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "the batch ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_ctrl_c_ends_between_entries(folder: Path) -> None:
    write(folder, *(entry(f"e{number}", "zeros") for number in range(40)))
    process = subprocess.Popen(
        [sys.executable, "-m", "htam_agent", "evaluate", "--batch", "batch.jsonl", "--backend", "cpp", "--json"],
        cwd=folder, env=clean_environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    summary = json.loads(out.splitlines()[-1])
    assert summary["ended"] == "interrupted"
    assert summary["remaining"] == 40 - lines_in(folder) > 0


def test_two_commands_on_one_results_file_are_not_both_let_in(folder: Path) -> None:
    write(folder, entry("a"))
    descriptor = os.open(folder / RESULTS, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    answer = run(folder)
    os.close(descriptor)
    assert answer.code == 2
    assert answer.error["code"] == "batch-locked"


@pytest.mark.parametrize(
    "arguments",
    [
        ["task.py", "--batch", "batch.jsonl"],
        ["task.py"],
        [],
        ["task.py", "k.py", "--out", "x.jsonl"],
        ["task.py", "k.py", "--protocols", "lenient"],
        ["--batch", "batch.jsonl", "--out", "batch.jsonl"],
        ["--batch", "nowhere.jsonl"],
    ],
)
def test_bad_usage_is_one_sentence(folder: Path, arguments: list[str]) -> None:
    write(folder, entry("a"))
    before = (folder / "batch.jsonl").read_bytes()
    answer = htam("evaluate", *arguments, "--json", folder=folder)
    assert answer.code == 2
    assert answer.error["message"]
    assert answer.error["remedy"]
    assert (folder / "batch.jsonl").read_bytes() == before
