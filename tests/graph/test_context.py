"""The run-time context: which folder a run takes, and who ends its processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from htam_agent.errors import RunError
from htam_agent.graph.context import Context
from htam_agent.runs.records import RunOptions
from htam_agent.services import make_context
from htam_agent.settings import Settings
from htam_agent.task import Task
from tests.support.command import ROOT

TASK = Task.parse(str(ROOT / "tests" / "tasks" / "pointwise_chain.py"))
OTHER = Task.parse(str(ROOT / "tests" / "tasks" / "row_softmax.py"))
OPTIONS = RunOptions(backend="cpp", steps=1, seed=1)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with closing(make_context(Settings.load({"runs": tmp_path}), OPTIONS, tmp_path / "run")) as made:
        yield made


def test_prepare_takes_up_its_own_run_and_no_other(context: Context) -> None:
    begun = context.take_up_run(TASK)
    assert context.take_up_run(TASK).root == begun.root, "a replayed prepare finds its run"
    elsewhere = TASK.model_copy(update={"path": "/moved/pointwise_chain.py"})
    assert context.take_up_run(elsewhere).root == begun.root
    with pytest.raises(RunError) as caught:
        context.take_up_run(OTHER)
    assert caught.value.code == "run-exists"
    context.options = OPTIONS.model_copy(update={"steps": 2})
    with pytest.raises(RunError, match="already holds a run"):
        context.take_up_run(TASK)


def test_a_new_run_never_takes_a_folder_that_holds_one(context: Context) -> None:
    context.start_run(TASK)
    with pytest.raises(RunError, match="already holds a run"):
        context.start_run(TASK)
