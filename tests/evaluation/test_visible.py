"""The GPUs that workers see: one by its own name, the device files of others closed, none at all on a processor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from htam_agent.backends import nvml
from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.evaluation.confinement import Cell, confine
from htam_agent.evaluation.landlock import landlock_version, restrict_files
from htam_agent.evaluation.visible import ONE_GPU, SHARED_FILES, Visible, listed, narrowed, visible_device
from htam_agent.task import Task
from tests.evaluation.samples import FORWARD, TASK, candidate

SEVERAL = ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia10"]


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (("GPU-a", 2, 1, SEVERAL), Visible("GPU-a", "cuda:0", (SHARED_FILES, "/dev/nvidia1"))),
        (("GPU-a", 0, 0, SEVERAL[:1]), Visible("GPU-a", "cuda:0", (SHARED_FILES, ONE_GPU))),
        (("GPU-a", 0, None, SEVERAL[:1]), Visible("GPU-a", "cuda:0", (SHARED_FILES, ONE_GPU))),
        (("", 0, None, SEVERAL[:1]), Visible("5,3", "cuda:0", (SHARED_FILES, ONE_GPU))),
    ],
)
def test_one_device_is_seen_and_it_is_the_workers_first(
    facts: tuple[str, int, int | None, list[str]], wanted: Visible, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    assert narrowed(*facts) == wanted


def test_what_cannot_be_narrowed_is_said() -> None:
    nameless = narrowed("", 1, 1, SEVERAL)
    assert nameless.device == "cuda:1"
    assert "stay visible" in nameless.missing
    assert "files stay open" in narrowed("GPU-a", 1, None, SEVERAL).missing
    for visible in (nameless, narrowed("GPU-a", 1, None, SEVERAL)):
        assert one_gpu(Cell(folder="/", cuda=True, gpu_missing=visible.missing)) == [f"one-gpu: {visible.missing}"]
    assert one_gpu(Cell(folder="/", cuda=True)) == []


def one_gpu(cell: Cell) -> list[str]:
    """What a confined process reports of this layer when it is missing."""

    def report() -> str:
        _, missing = confine(cell.model_copy(update={"environment": dict(os.environ)}))
        return "\n".join(line for line in missing if line.startswith("one-gpu"))

    return list(filter(None, in_child(report).split("\n")))


def in_child(act: object) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            assert callable(act)
            os.write(writing, str(act()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_a_list_of_devices_is_indexed_as_cuda_does() -> None:
    assert [listed("GPU-a, 3", index) for index in range(3)] == ["GPU-a", "3", ""]
    assert listed("", 0) == ""
    assert listed(None, 1) == "1", "CUDA counts all devices where the variable is not set"


def test_a_device_that_nothing_names_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVML: the user's own list, or the index. An empty value would hide every GPU."""
    monkeypatch.setattr(nvml, "unique_name", lambda index: "")
    monkeypatch.setattr(nvml, "minor_number", lambda index: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (visible_device(True, 1).names, visible_device(True, 1).device) == ("1", "cuda:0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7")
    assert (visible_device(True, 1).names, visible_device(True, 1).device) == ("GPU-7", "cuda:0")


@pytest.mark.skipif(not landlock_version(), reason="the kernel has no landlock")
def test_the_files_of_other_gpus_cannot_be_opened(tmp_path: Path) -> None:
    names = ["nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"]
    for name in names:
        (tmp_path / name).write_text("")
    patterns = [pattern.replace("/dev", str(tmp_path)) for pattern in narrowed("GPU-a", 0, 1, SEVERAL).files]

    def opened() -> Sequence[str]:
        restrict_files(readable=["/usr"], devices=patterns, renamable=[], writable=[])
        found = []
        for name in names:
            with contextlib.suppress(PermissionError):
                os.close(os.open(tmp_path / name, os.O_RDWR))
                found.append(name)
        return found

    assert in_child(opened) == str(["nvidia1", "nvidiactl", "nvidia-uvm"])


def test_workers_of_a_processor_see_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert visible_device(False, 0) == Visible()
    (tmp_path / "task.py").write_text(TASK)
    reading = "assert os.environ['CUDA_VISIBLE_DEVICES'] == '', os.environ['CUDA_VISIBLE_DEVICES']\n" + FORWARD
    (tmp_path / "kernel.py").write_text(candidate(reading))
    task = Task.parse(str(tmp_path / "task.py"))
    with Bench(task, backend="cpp", folder=tmp_path / "run", limits=Limits(run_seconds=20)) as bench:
        zygote, _ = bench.processes
        assert b"\0CUDA_VISIBLE_DEVICES=\0" in b"\0" + Path(f"/proc/{zygote}/environ").read_bytes()
        result = bench.run(bench.compile(tmp_path / "kernel.py"), timing=False)
    assert result.verdict == "correct", result
    assert "one-gpu" in result.confinement
