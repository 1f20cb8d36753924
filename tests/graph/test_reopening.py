"""Runs that were stopped before their own end and are resumed more than once, by one process at a time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from langgraph.runtime import RunControl

from htam_agent.api import optimize, resume
from htam_agent.cli.runs import list_lines
from htam_agent.errors import RunError
from htam_agent.graph.events import Event
from htam_agent.graph.runner import Interrupted, Paused
from htam_agent.runs.exchange import waiting_runs
from htam_agent.runs.folder import RunFolder
from htam_agent.runs.holding import held
from htam_agent.runs.records import Result
from htam_agent.runs.waiting import Waiting
from tests.support.endpoint import Reply, failure, scripted
from tests.support.instant import TASK, answer, settings_of
from tests.support.pausing import answers

GIVEN = {"api_key": "sk-x", "preflight": False}


def stopped_at_code(run: Path, **given: object) -> None:
    """Resumes the run and stops it once the model has answered."""
    control = RunControl()

    def stop(event: Event) -> None:
        if event["kind"] == "code":
            control.request_drain("asked to")

    with pytest.raises(Interrupted):
        resume(str(run), listen=stop, control=control, **{**GIVEN, **given})


def test_a_reopened_run_that_is_stopped_again_goes_on_under_the_same_command(tmp_path: Path) -> None:
    with scripted(*[answer(said) for said in ("1.2", "1.5", "1.1", "2.0", "1.3")]) as server:
        first = optimize(str(TASK), **settings_of(tmp_path, server.url, steps=5, max_tokens=6000))
        run = tmp_path / "run"
        stopped_at_code(run, max_tokens=100_000)
        assert not (run / "result.json").exists(), "it is under way again"
        last = resume(str(run), max_tokens=100_000, **GIVEN)
        assert len(server.requests) == 5, "no step is paid for twice"
    assert first.unfinished == "budget"
    assert (last.unfinished, last.speedup.best, len(last.steps)) == ("", 2.0, 5)
    assert RunFolder(run).read("stopped.json", Result) == first


def test_a_step_that_was_paid_for_survives_a_second_reopening(tmp_path: Path) -> None:
    with scripted(answer("1.2"), answer("1.1"), failure(401, "gone")) as server:
        assert optimize(str(TASK), **settings_of(tmp_path, server.url, steps=4)).unfinished == "model"
    run = tmp_path / "run"
    with scripted(answer("1.8"), answer("1.3")) as server:
        stopped_at_code(run, base_url=server.url)
        # As if the process had been killed before it moved the result aside.
        RunFolder(run).move("stopped.json", "result.json")
        last = resume(str(run), base_url=server.url, **GIVEN)
        assert len(server.requests) == 2
    assert (last.unfinished, last.speedup.best) == ("", 1.8)
    assert [step.step for step in last.steps] == [1, 2, 3, 4]


def code(said: str) -> Reply:
    """An answer whose file stands the look at its text, which comes before it goes to another machine."""
    found = answer(said)
    assert isinstance(found.body, dict)
    whole = (
        "import torch\nCPP_SRC = ''\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x"
    )
    message = found.body["choices"][0]["message"]  # type: ignore[index]
    message["content"] = message["content"].replace("class ModelNew:\n    pass", whole)
    return found


def test_a_reopened_run_that_waits_is_seen_and_takes_its_verdicts(tmp_path: Path) -> None:
    run, given = tmp_path / "runs" / "run", dict(GIVEN)

    def on(waiting: Waiting | None, **more: object) -> Result | Waiting:
        try:
            return resume(str(run), verdicts=answers(waiting) if waiting else None, **{**given, **more})
        except Paused as paused:
            return paused.waiting

    with scripted(*[code(said) for said in ("1.2", "1.5", "1.1", "2.0", "1.3")]) as server:
        begun = settings_of(tmp_path, server.url, steps=5, max_tokens=6000, evaluator="external", out=run, repairs=0)
        with pytest.raises(Paused) as caught:
            optimize(str(TASK), **{name: value for name, value in begun.items() if name != "tools"})
        told: Result | Waiting = caught.value.waiting
        while isinstance(told, Waiting):
            last = told.candidates[0].id.endswith("final")
            told = on(told, **({"max_tokens": 100_000} if last else {}))
        assert told.unfinished == "budget", "a new limit comes too late for a run that has but to write its result"
        told = on(None, max_tokens=100_000)
        assert isinstance(told, Waiting)
        assert [folder.root for folder, _ in waiting_runs(tmp_path / "runs")] == [run]
        assert [line.state for line in list_lines(tmp_path / "runs")] == ["waiting"]
        while isinstance(told, Waiting):
            told = on(told)
    assert (told.unfinished, len(told.steps)) == ("", 5)


def test_a_stopped_run_without_its_checkpoints_says_so_and_stays_as_it_is(tmp_path: Path) -> None:
    with scripted(*[answer("1.5")] * 5) as server:
        first = optimize(str(TASK), **settings_of(tmp_path, server.url, steps=5, max_tokens=6000))
        run = tmp_path / "run"
        (run / "checkpoints.sqlite").unlink()
        for _ in range(2):
            with pytest.raises(RunError) as caught:
                resume(str(run), max_tokens=100_000, **GIVEN)
            assert caught.value.code == "checkpoint-missing"
        assert resume(str(run), **GIVEN) == first


def test_a_run_is_driven_by_one_at_a_time(tmp_path: Path) -> None:
    refused: list[str] = []

    def second(event: Event) -> None:
        """While the first is in a step, another thread resumes the same run."""
        if event["kind"] != "code" or refused:
            return

        def go() -> None:
            with pytest.raises(RunError) as caught:
                resume(str(tmp_path / "run"), **GIVEN)
            refused.append(caught.value.code)

        thread = threading.Thread(target=go)
        thread.start()
        thread.join()

    with scripted(answer("1.2"), answer("1.5")) as server:
        result = optimize(str(TASK), listen=second, **settings_of(tmp_path, server.url, steps=2))
        assert len(server.requests) == 2
    assert refused == ["run-under-way"]
    with held(RunFolder(tmp_path / "run")):
        assert resume(str(tmp_path / "run")) == result, "what has ended is only read"
