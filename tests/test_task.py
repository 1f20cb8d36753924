"""Naming a task reads its text and never runs it."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
from pathlib import Path

import pytest

from htam_agent.errors import TaskError
from htam_agent.task import Task

GOOD = "class Model:\n    pass\ndef get_inputs():\n    return []\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "op.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_named_and_hashed_but_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = write(tmp_path, GOOD + f"open({str(marker)!r}, 'w')\n")
    task = Task.parse(str(path))
    assert (task.name, task.kind, task.symbol) == ("op", "file", "Model")
    assert not marker.exists()


def test_the_identity_follows_the_content(tmp_path: Path) -> None:
    first = Task.parse(str(write(tmp_path, GOOD))).id
    assert Task.parse(str(write(tmp_path, GOOD + "\n"))).id != first


def test_another_class_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "class Other:\n    pass\n")
    assert Task.parse(f"{path}:Other").symbol == "Other"


@pytest.mark.parametrize("text", ["if True:\n    " + GOOD.replace("\n", "\n    "), "from elsewhere import *\n"])
def test_conditional_and_star_definitions_are_accepted(tmp_path: Path, text: str) -> None:
    assert Task.parse(str(write(tmp_path, text))).kind == "file"


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ("def get_inputs():\n    return []\n", "task-incomplete", "Model"),
        ("class Model:\n    pass\n", "task-incomplete", "get_inputs"),
        ("class Model(:\n", "task-syntax", "line 1"),
        ("\0", "task-syntax", "parse"),
    ],
)
def test_a_bad_file_is_one_clear_sentence(tmp_path: Path, text: str, code: str, word: str) -> None:
    with pytest.raises(TaskError) as caught:
        Task.parse(str(write(tmp_path, text)))
    assert caught.value.code == code
    assert word in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize("spelled", ["nowhere.py", "nowhere", "no_such_package.module:factory", "", ":"])
def test_a_missing_task_is_said_so(spelled: str) -> None:
    with pytest.raises(TaskError) as caught:
        Task.parse(spelled)
    assert caught.value.code == "task-missing"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "op.py"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="UTF-8"):
        Task.parse(str(path))


def test_a_factory_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_for_test.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    task = Task.parse("made_for_test:build")
    assert (task.kind, task.name) == ("factory", "build")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "htam" / "tasks"


def module_task() -> Task:
    import torch
    from torch import nn

    return Task.from_module(nn.ReLU(), [torch.ones(4, 4)])


def test_a_live_module_is_kept_where_only_its_user_writes(cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o777)
    cache.chmod(0o777)
    task = module_task()
    assert Path(task.path).parent == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(task.path).stat().st_mode) & 0o077 == 0


def test_a_cache_folder_that_is_a_link_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    cache.parent.mkdir(parents=True)
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TaskError) as caught:
        module_task()
    assert caught.value.code == "task-folder"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder to another user")
def test_a_cache_folder_of_another_user_is_refused(cache: Path) -> None:
    cache.mkdir(parents=True)
    os.chown(cache, 12345, 12345)
    with pytest.raises(TaskError, match="not a folder of this user"):
        module_task()


def test_a_changed_pickle_is_not_loaded(cache: Path, tmp_path: Path) -> None:
    from htam_agent.evaluation.loading import load_task

    task = module_task()
    marker = tmp_path / "ran"
    Path(task.path).write_bytes(pickle.dumps(Trap(str(marker))))
    for use in (lambda: load_task(task, "cpu", "tf32", 0, []), lambda: task.kept_in(tmp_path)):
        with pytest.raises(TaskError) as caught:
            use()
        assert caught.value.code == "task-changed"
    assert not marker.exists()


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self._path, "w")


def test_a_runs_copy_does_not_need_the_cache(cache: Path, tmp_path: Path) -> None:
    from htam_agent.evaluation.loading import load_task

    kept = module_task().kept_in(tmp_path / "run")
    shutil.rmtree(cache)
    assert load_task(kept, "cpu", "tf32", 0, []).model(torch_ones()).sum() == 16
    assert kept.checked_bytes() == (tmp_path / "run" / "task.pickle").read_bytes()


def torch_ones() -> object:
    import torch

    return torch.ones(4, 4)


def test_example_inputs_must_be_a_list_of_arguments() -> None:
    import torch

    for wrong in (torch.ones(3, 4), {"x": torch.ones(3)}, 5):
        with pytest.raises(TaskError) as caught:
            Task.from_module(torch.nn.ReLU(), wrong)  # type: ignore[arg-type]
        assert caught.value.code == "task-inputs"
    with pytest.raises(TaskError) as caught:
        Task.from_module(lambda x: x, [torch.ones(3)])  # type: ignore[arg-type]
    assert caught.value.code == "task-module"
