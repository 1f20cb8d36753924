"""A task from a live module: its run keeps its own copy, and goes on with that one or not at all."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from htam_agent import Task
from htam_agent.api import resume
from htam_agent.errors import TaskError
from htam_agent.runs.records import RunOptions
from htam_agent.services import make_context
from htam_agent.settings import Settings


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was begun and got no further."""
    import torch
    from torch import nn

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    task = Task.from_module(nn.Sequential(nn.ReLU(), nn.Sigmoid()), [torch.randn(64, 256)])
    options = RunOptions(backend="cpp", steps=1, seed=1)
    with closing(make_context(Settings.load({"memory": "memory"}), options, tmp_path / "run")) as context:
        folder = context.start_run(task)
    shutil.rmtree(tmp_path / "cache")
    return folder.root


def test_a_resume_does_not_need_the_cache(run: Path) -> None:
    result = resume(str(run))
    assert [step.step for step in result.steps] == [1]
    assert result.source is not None
    assert Path(result.source.path).parent == run


def test_a_resume_refuses_a_changed_pickle(run: Path) -> None:
    (run / "task.pickle").write_bytes(b"something else")
    with pytest.raises(TaskError) as caught:
        resume(str(run))
    assert caught.value.code == "task-changed"
