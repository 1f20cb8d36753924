"""Two machines: runs that wait are written into one batch, judged elsewhere, and go on with one results file."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from htam_agent.batch.entries import read_batch
from htam_agent.cli import main
from htam_agent.runs.waiting import Waiting
from htam_agent.schemas import FOLDER
from tests.support.command import ROOT, htam
from tests.support.pausing import answers

TASK = ROOT / "tests" / "tasks" / "pointwise_chain.py"
OPTIMIZE = ("optimize", str(TASK), "--backend", "cpp", "--evaluator", "external", "--steps", "1", "--seed", "1")


class Terminal:
    """The command line in this process: what it prints as objects, and its exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, list[dict[str, object]]]:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--json"])
        out = self._capsys.readouterr().out
        code = left.value.code
        assert isinstance(code, int)
        return code, [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys)


def test_one_batch_over_many_runs_and_all_go_on_with_its_results(terminal: Terminal, tmp_path: Path) -> None:
    for _ in range(2):
        code, (waiting,) = terminal(*OPTIMIZE)
        assert code == 1
        assert (waiting["schema"], waiting["kind"]) == ("htam.waiting/1", "facts")
        jsonschema.validate(waiting, json.loads((FOLDER / "waiting.json").read_text(encoding="utf-8")))
    exchange, results = tmp_path / "exchange" / "batch.jsonl", tmp_path / "results.jsonl"
    outcomes: list[dict[str, object]] = []
    for round_ in range(10):
        code, (pending,) = terminal("runs", "pending", "--batch", str(exchange))
        if not pending["entries"]:
            break
        jsonschema.validate(pending, json.loads((FOLDER / "pending.json").read_text(encoding="utf-8")))
        lines = read_batch(exchange)
        assert len(lines) == pending["entries"] == len(pending["waiting"]), "each run asks one thing at a time"
        assert all(line.entry for line in lines), [line.problem for line in lines]
        for line in lines:
            assert line.entry is not None
            for name in filter(None, (line.entry.task, line.entry.kernel)):
                assert (exchange.parent / name).is_file(), "what is named lies beside the batch"
        said = [json.dumps(line) for each in pending["waiting"] for line in answers(Waiting.model_validate(each))]
        if round_ == 1:  # one run's verdict is forgotten: it waits on, the other goes on
            results.write_text(said[0] + "\n", encoding="utf-8")
            code, outcomes = terminal("resume", "all", "--verdicts", str(results), "--jobs", "2")
            assert code == 2
            assert ["error" in outcome for outcome in outcomes] == [False, True]
            continue
        results.write_text("\n".join(said) + "\n", encoding="utf-8")
        code, outcomes = terminal("resume", "all", "--verdicts", str(results), "--jobs", "2")
        if code == 0:
            break
    code, (listed,) = terminal("runs")
    assert [(run["state"], run["verdict"]) for run in listed["runs"]] == [("finished", "correct")] * 2
    code, (pending,) = terminal("runs", "pending")
    assert pending["waiting"] == []


def test_what_does_not_fit_is_one_sentence(terminal: Terminal, tmp_path: Path) -> None:
    code, (error,) = terminal("optimize", str(TASK), "--evaluator", "external")
    assert code == 2
    assert "Name it: --backend cuda" in error["error"]["remedy"]
    code, (error,) = terminal("resume", "all")
    assert code == 2
    terminal(*OPTIMIZE, "--out", "run")
    for arguments, words in (
        (("--approve", "yes"), "waits for facts"),
        (("--verdicts", "missing.jsonl"), "cannot be read"),
        (("--verdicts", str(TASK)), "is not JSON"),
    ):
        code, (error,) = terminal("resume", "run", *arguments)
        assert (code, error["schema"]) == (2, "htam.resume/1")
        assert words in error["error"]["message"], error
    code, (listed,) = terminal("runs", "--runs", ".")
    assert [run["state"] for run in listed["runs"]] == ["waiting"]
    assert "what pointwise_chain takes" in listed["runs"][0]["reason"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # nine processes, each of which may share its cores with other tests
def test_the_real_evaluator_answers_a_run_that_waits(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    answer = htam(*OPTIMIZE, "--json", "--out", "run", folder=here)
    for _ in range(6):
        if answer.last["schema"] != "htam.waiting/1":
            break
        assert htam("runs", "pending", "--runs", ".", "--batch", str(there / "b.jsonl"), folder=here).code == 0
        judged = htam("evaluate", "--batch", "b.jsonl", "--protocols", "strict", "--json", folder=there)
        assert judged.code == 0, judged.stderr
        answer = htam("resume", "run", "--verdicts", str(there / "b.results.jsonl"), "--json", folder=here)
    assert answer.code == 0, answer.stderr
    assert answer.last["verdict"] == "correct"
    assert answer.last["steps"]
