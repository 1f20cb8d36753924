"""The run folder: whole files or none, clear sentences for what cannot be written or read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from htam_agent.errors import RunError
from htam_agent.runs.cap import folder_bytes, keep_under_cap
from htam_agent.runs.folder import RunFolder, find_run, list_runs, new_run_folder, write_atomically
from htam_agent.runs.records import Result
from htam_agent.verdict import Times


def make_run(runs: Path, name: str, unfinished: Literal["", "model"] | None = "") -> RunFolder:
    """A run with a result that says why it stopped, or (None) without one."""
    folder = RunFolder.create(runs / name)
    write_atomically(folder.path("run.json"), "{}")
    write_atomically(folder.candidate(1, 0, 0) / "kernel.py", "x" * 1000)
    write_atomically(folder.path("kernel.py"), "kept")
    if unfinished is not None:
        result = Result(
            run=name, task="task", backend="cpp", device="a processor", precision="tf32", policy="own-kernels-only",
            verdict="correct", unfinished=unfinished,
        )  # fmt: skip
        folder.write("result.json", result)
    return folder


def test_a_record_comes_back_and_an_absent_one_is_none(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    assert folder.read("baselines.json", Times) is None
    folder.write("baselines.json", Times(eager=1.5))
    assert folder.read("baselines.json", Times) == Times(eager=1.5)
    assert [path.name for path in folder.root.iterdir()] == ["baselines.json"]


@pytest.mark.parametrize("text", ["", "{", '{"eager": "fast"}', '{"unknown": 1}', "\xff"])
def test_a_corrupt_record_is_named_with_its_file(tmp_path: Path, text: str) -> None:
    folder = RunFolder.create(tmp_path / "run")
    folder.path("baselines.json").write_text(text, encoding="latin-1")
    with pytest.raises(RunError) as caught:
        folder.read("baselines.json", Times)
    assert caught.value.code == "run-corrupt"
    assert "baselines.json" in caught.value.message


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    make_run(tmp_path, "run")
    with pytest.raises(RunError, match="already holds a run"):
        RunFolder.create(tmp_path / "run")


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunError) as caught:
        RunFolder.create(tmp_path / "file" / "run")
    assert caught.value.code == "folder-not-writable"


@pytest.mark.skipif(not Path("/dev/full").exists() or os.geteuid() != 0, reason="needs root to link to /dev/full")
def test_a_full_disk_keeps_the_earlier_file(tmp_path: Path) -> None:
    target = tmp_path / "record.json"
    write_atomically(target, "earlier")
    target.with_name(f".record.json.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(RunError) as caught:
        write_atomically(target, "later")
    assert caught.value.code == "disk-full"
    assert target.read_text(encoding="utf-8") == "earlier"


def test_runs_are_found_by_path_name_and_last(tmp_path: Path) -> None:
    make_run(tmp_path, "20260101-a")
    newest = make_run(tmp_path, "20260102-b")
    assert find_run(tmp_path, "20260101-a").root.name == "20260101-a"
    assert find_run(tmp_path, str(newest.root)).root == newest.root
    assert find_run(tmp_path, "last").root == newest.root
    with pytest.raises(RunError, match="no run"):
        find_run(tmp_path, "other")
    with pytest.raises(RunError, match="no runs"):
        find_run(tmp_path / "empty", "last")


def test_new_names_are_unique_and_safe(tmp_path: Path) -> None:
    names = {new_run_folder(tmp_path, "../odd name/with*chars").name for _ in range(20)}
    assert len(names) == 20
    assert all("/" not in name and ".." not in name.split("-")[2:] for name in names)


def test_the_cap_takes_attempts_of_finished_runs_oldest_first(tmp_path: Path) -> None:
    oldest, middle, newest = (make_run(tmp_path, f"run-{letter}", None if letter == "a" else "") for letter in "abc")
    cap = folder_bytes(tmp_path) - 500
    assert keep_under_cap(tmp_path, cap) == ["run-b"]
    assert oldest.path("candidates").exists(), "an unfinished run is never touched"
    assert not middle.path("candidates").exists()
    assert middle.path("kernel.py").read_text(encoding="utf-8") == "kept"
    assert newest.path("candidates").exists()
    assert len(list_runs(tmp_path)) == 3


def test_the_cap_leaves_alone_what_can_be_resumed_or_cannot_be_read(tmp_path: Path) -> None:
    stopped, corrupt = make_run(tmp_path, "run-a", "model"), make_run(tmp_path, "run-b")
    write_atomically(stopped.path("checkpoints.sqlite"), "the graph's state")
    write_atomically(corrupt.path("result.json"), "{}")
    assert keep_under_cap(tmp_path, 0) == []
    assert stopped.path("candidates").exists()
    assert stopped.path("checkpoints.sqlite").exists()
    assert corrupt.path("candidates").exists()
