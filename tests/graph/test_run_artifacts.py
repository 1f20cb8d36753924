"""One whole run on the C++ backend through the command line: what it prints, what it leaves, what it learned."""

from __future__ import annotations

import json
import runpy
import sqlite3
from pathlib import Path

import pytest

from tests.support.command import ROOT, Answer, htam

TASK = ROOT / "tests" / "tasks" / "pointwise_chain.py"
STEPS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def answer(folder: Path) -> Answer:
    return htam(
        "optimize", str(TASK), "--backend", "cpp", "--steps", str(STEPS), "--seed", "3", "--json",
        "--out", "run", "--memory", "memory", folder=folder,
    )  # fmt: skip


def test_a_correct_kernel_comes_out(answer: Answer, folder: Path) -> None:
    assert answer.code == 0, answer.stderr
    result = answer.last
    assert result["verdict"] == "correct"
    kernel = Path(str(result["kernel"]))
    assert kernel.parent == folder / "run"
    assert "htam_agent" not in kernel.read_text(encoding="utf-8"), "the kernel is the user's: it needs no htam_agent"


def test_only_the_object_is_on_stdout(answer: Answer) -> None:
    assert len(answer.stdout.strip().splitlines()) == 1


def test_every_step_names_its_direction_reason_and_strategy(answer: Answer) -> None:
    steps = answer.last["steps"]
    assert isinstance(steps, list)
    assert 1 <= len(steps) <= STEPS
    for step in steps:
        assert step["direction"]
        assert step["why"]
        assert step["strategy"]
        assert step["candidates"]


def test_checkpoints_stay_under_100_kb_a_step(answer: Answer, folder: Path) -> None:
    steps = answer.last["steps"]
    assert isinstance(steps, list)
    connection = sqlite3.connect(folder / "run" / "checkpoints.sqlite")
    stored = connection.execute(
        "select (select coalesce(sum(length(checkpoint) + length(metadata)), 0) from checkpoints)"
        " + (select coalesce(sum(length(value)), 0) from writes)"
    ).fetchone()[0]
    connection.close()
    assert stored < 100_000 * len(steps)


def test_what_was_measured_was_learned(answer: Answer, folder: Path) -> None:
    steps = answer.last["steps"]
    assert isinstance(steps, list)
    stats = htam("memory", "stats", "--memory", "memory", "--json", folder=folder).last
    judged = len(list((folder / "run" / "candidates").glob("*/compile.json")))
    attempts = [candidate["attempts"] for step in steps for candidate in step["candidates"]]
    assert stats["experiences"] == judged, "each judged attempt counts once; what a coder refuses is no fact"
    assert len(attempts) <= judged <= sum(attempts)


def test_the_run_is_listed_and_reported(answer: Answer, folder: Path) -> None:
    listed = htam("runs", "--runs", ".", "--json", folder=folder).last["runs"]
    assert isinstance(listed, list)
    assert [run["state"] for run in listed] == ["finished"]
    report = (folder / "run" / "report.md").read_text(encoding="utf-8")
    assert "| step | direction |" in report


def test_the_kernel_evaluates_correct_on_its_own(answer: Answer, folder: Path) -> None:
    judged = htam("evaluate", str(TASK), str(answer.last["kernel"]), "--backend", "cpp", "--json", folder=folder)
    assert judged.code == 0, judged.stdout
    assert judged.last["verdict"] == "correct"


def test_the_result_loads_as_a_module(answer: Answer) -> None:
    import torch

    from htam_agent import Result

    result = Result.model_validate(json.loads(answer.stdout))
    module = result.load()
    names = runpy.run_path(str(TASK))
    original = names["Model"](*names["get_init_inputs"]())
    x = torch.randn(64, 1024)
    with torch.no_grad():
        assert torch.allclose(module(x), original(x), atol=1e-5)


def test_resuming_a_finished_run_changes_nothing(answer: Answer, folder: Path) -> None:
    again = htam("resume", "run", "--memory", "memory", "--json", folder=folder)
    assert again.last == answer.last
