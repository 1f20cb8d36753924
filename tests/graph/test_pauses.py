"""Runs that wait: for another machine's facts and verdicts, for a yes to a direction, for a yes to code."""

from __future__ import annotations

from pathlib import Path

import pytest

from htam_agent.errors import RunError
from htam_agent.graph.context import Context
from htam_agent.graph.runner import Paused, run_graph
from htam_agent.runs.answering import take_answers
from htam_agent.runs.folder import RunFolder
from htam_agent.runs.records import Result
from htam_agent.runs.waiting import Waiting
from tests.support.pausing import TASK, SayingCoder, answers, context_of, options_of


def drive(context: Context, folder: RunFolder, answer: str | None = None) -> Result | Waiting:
    """The run until its end or its next pause, as a new process would go on with it."""
    own = context.for_one_run()
    own.folder = folder.root
    try:
        return run_graph(own, TASK, folder, lambda event: None, answer=answer)
    except Paused as paused:
        return paused.waiting


def state_of(folder: RunFolder) -> dict[str, bytes]:
    """Every file of the run but the checkpoints."""
    files = (path for path in folder.root.rglob("*") if path.is_file() and "sqlite" not in path.name)
    return {str(path.relative_to(folder.root)): path.read_bytes() for path in files}


def to_the_end(context: Context, folder: RunFolder) -> tuple[Result, list[Waiting]]:
    """Answers everything that the run asks another machine."""
    asked = []
    told = drive(context, folder)
    while isinstance(told, Waiting):
        asked.append(told)
        take_answers(folder, answers(told), None)
        told = drive(context, folder)
    return told, asked


def test_another_machine_judges_a_whole_run(tmp_path: Path) -> None:
    coder = SayingCoder([["broken", "1.5", "1.8"], ["1.2", "wrong", "1.1"]])
    with context_of(tmp_path, coder, options_of(evaluator="external", steps=2, candidates=2)) as context:
        folder = context.start_run(TASK)
        result, asked = to_the_end(context, folder)
    assert [each.kind for each in asked] == ["facts"] + ["verdicts"] * (len(asked) - 1)
    wanted = [[one.id.rpartition("/")[2] for one in each.candidates] for each in asked[1:]]
    assert wanted == [["0001-0-0", "0001-1-0"], ["0001-0-1"], ["0002-0-0", "0002-1-0"], ["0002-1-1"], ["final"]]
    assert result.verdict == "correct"
    assert result.speedup.best == pytest.approx(1.8)
    assert [step.verdict for step in result.steps] == ["correct", "correct"]
    assert [one.attempts for one in result.steps[0].candidates] == [2, 1]
    assert not (folder.root / "waiting.json").exists()
    assert asked[-1].candidates[0].deep is False, "the deep checks of cpp are on request"


CHANGES: dict[str, dict[str, object]] = {
    "another kernel": {"kernel_sha256": "0" * 64},
    "another task": {"task_sha256": "0" * 64},
    "another device": {"device": "a toaster"},
    "another precision": {"precision": "bf16"},
    "another protocol": {"protocol": "kernelbench"},
    "another backend": {"backend": "cuda"},
    "another policy": {"policy": "library-allowed"},
    "another name": {"id": "somebody/0001-0-0"},
    "another form": {"schema": "htam.optimize/1"},
    "a field too many": {"colour": "red"},
}


def test_verdicts_that_answer_something_else_are_refused_and_the_run_is_as_before(tmp_path: Path) -> None:
    coder = SayingCoder([["1.5"]])
    with context_of(tmp_path, coder, options_of(evaluator="external")) as context:
        folder = context.start_run(TASK)
        facts = drive(context, folder)
        assert isinstance(facts, Waiting)
        with pytest.raises(RunError, match="waits for facts, not for a yes"):
            take_answers(folder, None, "yes")
        take_answers(folder, answers(facts), None)
        waiting = drive(context, folder)
        assert isinstance(waiting, Waiting)
        before = state_of(folder)
        for what, change in CHANGES.items():
            with pytest.raises(RunError):
                take_answers(folder, answers(waiting, **change), None)
            assert state_of(folder) == before, what
        with pytest.raises(RunError, match="There is no verdict"):
            take_answers(folder, [], None)
        error = {"code": "worker", "message": "The GPU fell off.", "remedy": "Put it back."}
        failed = {"schema": "htam.batch-error/1", "id": waiting.candidates[0].id, "line": 1, "error": error, "key": "k"}
        with pytest.raises(RunError, match="The GPU fell off"):
            take_answers(folder, [failed], None)
        again = drive(context, folder)
        assert isinstance(again, Waiting)
        assert again.candidates == waiting.candidates, "it waits for the same"
        assert state_of(folder) == before
        result, _ = to_the_end(context, folder)
        with pytest.raises(RunError, match="waits for nothing"):
            take_answers(folder, answers(waiting), None)
    assert result.speedup.best == pytest.approx(1.5)


def test_a_direction_waits_for_a_yes_a_no_or_another_name(tmp_path: Path) -> None:
    with context_of(tmp_path, SayingCoder([["1.5"]]), options_of(approve=("direction",), steps=2)) as context:
        folder = context.start_run(TASK)
        first = drive(context, folder)
        assert isinstance(first, Waiting)
        names = [one.direction for one in first.directions]
        assert len(names) > 2
        assert all(one.why for one in first.directions)
        for wrong in ("perhaps", "no-such-direction"):
            with pytest.raises(RunError, match="neither yes nor no"):
                take_answers(folder, None, wrong)
        told = drive(context, folder, "no-such-direction")
        assert isinstance(told, Waiting)
        assert "no-such-direction" in told.problem
        second = drive(context, folder, "no")
        assert isinstance(second, Waiting)
        assert [one.direction for one in second.directions] == names[1:], "the next best is proposed"
        third = drive(context, folder, names[-1])
        assert isinstance(third, Waiting)
        assert third.step == 2
        result = drive(context, folder, "yes")
    assert isinstance(result, Result)
    chosen = result.steps[0]
    assert chosen.direction == names[-1]
    assert chosen.directed is not None
    assert chosen.directed.by == "user"
    assert names[0] in chosen.directed.note
    assert result.steps[1].directed is not None
    assert result.steps[1].directed.by == "score"


def test_declining_every_direction_ends_the_run(tmp_path: Path) -> None:
    with context_of(tmp_path, SayingCoder([["1.5"]]), options_of(approve=("direction",))) as context:
        folder = context.start_run(TASK)
        told = drive(context, folder)
        while isinstance(told, Waiting):
            told = drive(context, folder, "no")
    assert told.reason.startswith("every direction was declined")
    assert told.kernel is None


@pytest.mark.parametrize("said", ["yes", "no"])
def test_code_waits_for_a_yes_before_it_is_built(tmp_path: Path, said: str) -> None:
    with context_of(tmp_path, SayingCoder([["broken", "1.5"]]), options_of(approve=("code",))) as context:
        folder = context.start_run(TASK)
        waiting = drive(context, folder)
        assert isinstance(waiting, Waiting)
        kernel = Path(waiting.candidates[0].kernel)
        assert "# instant: broken" in kernel.read_text(encoding="utf-8")
        assert not (kernel.parent / "compile.json").exists()
        told = drive(context, folder, said)
        learned = len(context.memory.experiences)
        if said == "no":
            assert isinstance(told, Result)
            assert (told.kernel, told.steps[0].verdict) == (None, "failed")
            assert "did not approve" in told.steps[0].reason
            assert not (kernel.parent / "compile.json").exists()
            assert learned == 0, "what was never run is no fact about a kernel"
            return
        assert isinstance(told, Waiting), "a mended file is another file"
        assert told.candidates[0].id.endswith("0001-0-1")
        result = drive(context, folder, "yes")
    assert isinstance(result, Result)
    assert result.speedup.best == pytest.approx(1.5)


def test_a_yes_counts_for_the_code_that_was_shown_alone(tmp_path: Path) -> None:
    with context_of(tmp_path, SayingCoder([["1.5"]]), options_of(approve=("code",))) as context:
        folder = context.start_run(TASK)
        first = drive(context, folder)
        assert isinstance(first, Waiting)
        kernel = Path(first.candidates[0].kernel)
        kernel.write_text(kernel.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
        again = drive(context, folder)
        assert isinstance(again, Waiting)
        assert again.candidates == first.candidates, "it still asks about what was shown"
        result = drive(context, folder, "yes")
        learned = len(context.memory.experiences)
    assert isinstance(result, Result)
    assert (result.kernel, learned) == (None, 0)
    assert "changed after it was shown" in result.steps[0].reason
    assert not (kernel.parent / "compile.json").exists()


def test_both_approvals_and_another_machine_in_one_run(tmp_path: Path) -> None:
    options = options_of(approve=("direction", "code"), evaluator="external")
    kinds = []
    with context_of(tmp_path, SayingCoder([["1.5"]]), options) as context:
        folder = context.start_run(TASK)
        told = drive(context, folder)
        while isinstance(told, Waiting):
            kinds.append(told.kind)
            external = told.kind in ("facts", "verdicts")
            take_answers(folder, answers(told) if external else None, None if external else "yes")
            told = drive(context, folder, None if external else "yes")
    assert kinds == ["facts", "direction", "code", "verdicts", "verdicts"]
    assert told.speedup.best == pytest.approx(1.5)


def test_a_task_that_cannot_travel_is_refused_before_any_work(tmp_path: Path) -> None:
    from htam_agent.errors import TaskError

    module = TASK.model_copy(update={"kind": "module", "symbol": ""})
    with context_of(tmp_path, SayingCoder([["1.5"]]), options_of(evaluator="external")) as context:
        folder = context.start_run(TASK)
        folder.write("run.json", folder.manifest().model_copy(update={"task": module}))
        context.folder = folder.root
        with pytest.raises(TaskError) as caught:
            run_graph(context, module, folder, lambda event: None)
    assert caught.value.code == "task-external"
