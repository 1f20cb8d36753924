"""The whole graph with the model coder over loopback HTTP, fed with answers that were really given: one that does not
compile and one that is wrong are both mended through the repair edge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.graph.test_resume_after_kill import judged, killed_at
from tests.support.command import ROOT, htam
from tests.support.replay_server import ReplayServer, replaying

TASK = ROOT / "tests" / "tasks" / "row_softmax.py"
OPTIONS = ("--backend", "cpp", "--coder", "model", "--steps", "3", "--seed", "1", "--json")


def model_settings(server: ReplayServer) -> dict[str, str]:
    return {
        "HTAM_BASE_URL": server.url,
        "HTAM_MODEL": "recorded",
        "HTAM_API_KEY": "sk-never-shown",
        "HTAM_PREFLIGHT": "false",
    }


def failures(run: Path) -> dict[str, str]:
    """Attempt -> the stage at which it failed, or nothing for a correct one."""
    found = {}
    for folder in sorted((run / "candidates").iterdir()):
        compiled = json.loads((folder / "compile.json").read_text(encoding="utf-8"))
        verdict = folder / "run.json"
        found[folder.name] = "compile" if not compiled["ok"] else json.loads(verdict.read_text())["verdict"]
    return found


def test_recorded_answers_drive_the_graph_through_both_repairs(tmp_path: Path) -> None:
    with replaying("row_softmax") as server:
        answer = htam(
            "optimize", str(TASK), *OPTIONS, "--out", "run", "--memory", "memory",
            folder=tmp_path, **model_settings(server),
        )  # fmt: skip
        assert server.mismatches == []
        assert server.complete
    steps = answer.last["steps"]
    assert isinstance(steps, list)
    assert [step["verdict"] for step in steps] == ["correct"] * 3, answer.stderr
    assert [step["candidates"][0]["attempts"] for step in steps] == [2, 2, 1]
    assert failures(tmp_path / "run") == {
        "0001-0-0": "compile",
        "0001-0-1": "correct",
        "0002-0-0": "wrong",
        "0002-0-1": "correct",
        "0003-0-0": "correct",
    }
    stats = htam("memory", "stats", "--memory", "memory", "--json", folder=tmp_path).last
    assert stats["experiences"] == 5, "what was mended is learned too, as a failure"
    cost = answer.last["cost"]
    assert isinstance(cost, dict)
    assert cost["tokens"] > 0
    assert cost["usd"] is None, "the price of this model is not known, and none is made up"
    stored = "".join(path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*.json"))
    assert "sk-never-shown" not in stored + answer.stdout + answer.stderr


@pytest.mark.slow
def test_a_run_killed_in_repair_goes_on_without_asking_twice(tmp_path: Path) -> None:
    with replaying("row_softmax") as server:
        settings = model_settings(server)
        run = killed_at("repair", 1, tmp_path, TASK, OPTIONS, settings)
        before = judged(run)
        answer = htam("resume", str(run), "--memory", str(tmp_path / "memory"), "--json", folder=tmp_path, **settings)
        assert server.mismatches == []
        assert server.complete, "every recorded answer was asked for exactly once"
    steps = answer.last["steps"]
    assert isinstance(steps, list)
    assert [step["step"] for step in steps] == [1, 2, 3]
    after = judged(run)
    assert {name: after[name] for name in before} == before
