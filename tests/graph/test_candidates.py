"""Several candidates a step: written side by side, in order, and no more often than once after a kill."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from htam_agent.coding.base import Code, CodeRequest
from htam_agent.errors import InfrastructureError
from htam_agent.graph.events import Event
from htam_agent.graph.runner import run_graph
from htam_agent.tools.session import Turns
from tests.graph.test_resume_after_kill import killed_at
from tests.support.command import htam
from tests.support.endpoint import scripted
from tests.support.instant import answer
from tests.support.pausing import TASK, SayingCoder, context_of, options_of


def test_candidates_are_written_side_by_side_and_keep_their_order(tmp_path: Path) -> None:
    coder = SayingCoder([["1.1"], ["1.4"], ["1.2"]], meeting=threading.Barrier(3))
    events: list[Event] = []
    with context_of(tmp_path, coder, options_of(candidates=3)) as context:
        folder = context.start_run(TASK)
        context.folder = folder.root
        result = run_graph(context, TASK, folder, events.append)
    for kind in ("code", "compiled", "judged", "profiled"):
        assert sorted(event["candidate"] for event in events if event["kind"] == kind) == [0, 1, 2]
    (step,) = result.steps
    assert [one.index for one in step.candidates] == [0, 1, 2]
    assert [one.speedup.best for one in step.candidates] == pytest.approx([1.1, 1.4, 1.2])
    assert step.speedup.best == pytest.approx(1.4)


class BreakingCoder(SayingCoder):
    """Breaks at its third call, as a machine would."""

    def generate(self, request: CodeRequest) -> Code:
        if request.index == 2 and len(self.asked) < 3:
            raise InfrastructureError("The coder's machine is gone.", "Start it again.")
        return super().generate(request)


def test_a_run_that_broke_among_its_candidates_asks_for_the_missing_one_alone(tmp_path: Path) -> None:
    coder = BreakingCoder([["1.1"], ["1.4"], ["1.2"]])
    with context_of(tmp_path, coder, options_of(candidates=3)) as context:
        folder = context.start_run(TASK)
        context.folder = folder.root
        with pytest.raises(InfrastructureError, match="is gone"):
            run_graph(context, TASK, folder, lambda event: None)
        assert sorted(index for _, index, _ in coder.asked) == [0, 1]
        coder.asked.append((0, 9, False))
        result = run_graph(context, TASK, folder, lambda event: None)
    assert sorted(index for _, index, _ in coder.asked) == [0, 1, 2, 9], "nobody is asked twice"
    assert [one.speedup.best for one in result.steps[0].candidates] == pytest.approx([1.1, 1.4, 1.2])


def test_checkpoints_of_many_candidates_stay_small(tmp_path: Path) -> None:
    coder = SayingCoder([["broken", "wrong", "1.1"]])
    with context_of(tmp_path, coder, options_of(candidates=8, steps=2)) as context:
        folder = context.start_run(TASK)
        context.folder = folder.root
        run_graph(context, TASK, folder, lambda event: None)
    connection = sqlite3.connect(folder.path("checkpoints.sqlite"))
    stored = connection.execute(
        "select (select coalesce(sum(length(checkpoint) + length(metadata)), 0) from checkpoints)"
        " + (select coalesce(sum(length(value)), 0) from writes)"
    ).fetchone()[0]
    connection.close()
    assert stored < 2 * 8 * 100_000


def test_builds_run_side_by_side_and_a_measurement_alone() -> None:
    turns, together = Turns(), threading.Barrier(2)
    seen: list[str] = []

    def build(key: str) -> None:
        with turns.beside(key):
            together.wait(timeout=10)
            seen.append(key)

    def measure() -> None:
        with turns.alone():
            seen.append("measured")

    def again() -> None:
        with turns.beside("a"):
            seen.append("again")

    threads = [threading.Thread(target=build, args=(key,), daemon=True) for key in ("a", "b")]
    with turns.alone():
        for thread in threads:
            thread.start()
        assert seen == []
    for thread in threads:
        thread.join(timeout=10)
    assert sorted(seen) == ["a", "b"]
    with turns.beside("a"):
        waiting = [threading.Thread(target=work, daemon=True) for work in (measure, again)]
        for thread in waiting:
            thread.start()
        time.sleep(0.1)
        assert not {"measured", "again"} & set(seen), "a measurement, and the same file, wait for the build"
    for thread in waiting:
        thread.join(timeout=10)
    assert {"measured", "again"} <= set(seen)


INSTANT = {"HTAM_TOOLS": '{"evaluator": "benchmarks.instant_evaluator:InstantBench"}'}


OTHERS = [pytest.param(node, 1, marks=pytest.mark.exhaustive) for node in ("generate", "compile", "run")]


@pytest.mark.parametrize(("node", "visit"), [("generate", 2), *OTHERS])
def test_a_run_killed_among_its_candidates_goes_on_exactly(node: str, visit: int, tmp_path: Path) -> None:
    answers = [answer("1.2"), answer("1.6"), answer("1.4"), answer("1.3")]
    with scripted(*answers) as endpoint:
        settings = {
            **INSTANT, "HTAM_BASE_URL": endpoint.url, "HTAM_MODEL": "scripted", "HTAM_API_KEY": "any",
            "HTAM_PREFLIGHT": "false",
        }  # fmt: skip
        options = ("--backend", "cpp", "--coder", "model", "--steps", "1", "--candidates", "3", "--seed", "1", "--json")
        run = killed_at(node, visit, tmp_path, options=options, settings=settings)
        kept = {path: path.read_bytes() for path in run.glob("candidates/*/code.json")}
        finished = htam("resume", str(run), "--json", folder=tmp_path, **settings)
        assert finished.code == 0, finished.stderr
        asked = len(endpoint.requests)
    # A question that was under way when the process was killed has to be asked again; one that was answered is not.
    assert 3 <= asked <= 3 + (3 - len(kept)), "each candidate is asked for once"
    assert all(path.read_bytes() == content for path, content in kept.items())
    (step,) = finished.last["steps"]
    assert [one["index"] for one in step["candidates"]] == [0, 1, 2]
    speedups = sorted(one["speedup"]["best"] for one in step["candidates"])
    assert speedups == [1.2, 1.4, 1.6] if asked == 3 else set(speedups) < {1.2, 1.3, 1.4, 1.6}
