"""Bad input is one clear sentence with its remedy, the contract's error object, and exit code 2."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.command import Answer, htam

GOOD = Path(__file__).parents[1] / "tasks" / "layer_norm_gelu.py"
MODEL = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return {body}\n"


def optimize(folder: Path, task: str, *more: str, **changes: str) -> Answer:
    return htam("optimize", task, "--backend", "cpp", "--steps", "1", "--json", *more, folder=folder, **changes)


def assert_refused(answer: Answer, code: str, *words: str, exit_code: int = 2) -> None:
    assert answer.code == exit_code, answer.stderr
    assert answer.last["schema"] == "htam.optimize/1"
    error = answer.error
    assert error["code"] == code
    assert error["remedy"]
    for word in words:
        assert word in error["message"]
    assert "Traceback" not in answer.stderr


def test_a_missing_file(tmp_path: Path) -> None:
    assert_refused(optimize(tmp_path, "nowhere.py"), "task-missing", "nowhere.py")


def test_a_file_without_model(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text("def get_inputs():\n    return []\n", encoding="utf-8")
    assert_refused(optimize(tmp_path, "op.py"), "task-incomplete", "Model")


def test_get_inputs_that_raises(tmp_path: Path) -> None:
    text = MODEL.format(body="x") + "def get_inputs():\n    raise ValueError('no data today')\n"
    (tmp_path / "op.py").write_text(text, encoding="utf-8")
    answer = optimize(tmp_path, "op.py")
    assert answer.code == 2
    assert "no data today" in answer.error["message"]
    assert "get_inputs" in answer.error["message"]


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    text = MODEL.format(body="x @ torch.ones(3, 3)") + "def get_inputs():\n    return [torch.ones(2, 2)]\n"
    (tmp_path / "op.py").write_text(text, encoding="utf-8")
    answer = optimize(tmp_path, "op.py")
    assert answer.code == 2
    assert "forward" in answer.error["message"]


def test_an_unknown_backend(tmp_path: Path) -> None:
    answer = htam("optimize", str(GOOD), "--backend", "metal", "--json", folder=tmp_path)
    assert_refused(answer, "settings", "metal")


def test_an_unknown_flag(tmp_path: Path) -> None:
    answer = htam("optimize", str(GOOD), "--colour", "red", "--json", folder=tmp_path)
    assert_refused(answer, "usage", "--colour")


def test_cuda_without_a_gpu(tmp_path: Path) -> None:
    answer = htam("optimize", str(GOOD), "--backend", "cuda", "--json", folder=tmp_path, CUDA_VISIBLE_DEVICES="")
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    assert_refused(answer, "backend-unavailable", "cuda")


def test_a_missing_key_is_named_before_any_work(tmp_path: Path) -> None:
    answer = optimize(tmp_path, str(GOOD), "--coder", "model")
    assert answer.code == 2
    assert "HTAM_MODEL" in answer.error["message"] + answer.error["remedy"]
    assert not list(tmp_path.glob("htam-runs/*/run.json"))


def test_a_corrupt_memory_folder_is_left_alone(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    (memory / "chroma.sqlite3").write_bytes(b"this is not a database" * 100)
    before = (memory / "chroma.sqlite3").read_bytes()
    answer = optimize(tmp_path, str(GOOD), "--memory", str(memory))
    assert_refused(answer, "memory-corrupt", str(memory))
    assert (memory / "chroma.sqlite3").read_bytes() == before


def test_an_output_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("", encoding="utf-8")
    assert_refused(optimize(tmp_path, str(GOOD), "--out", str(tmp_path / "out" / "run")), "folder-not-writable")


def test_a_read_only_output_folder(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        mounted = tmp_path / "locked"
        mounted.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(mounted)], check=False)
        if done.returncode != 0:
            pytest.skip("root may write everywhere, and nothing can be mounted here")
        try:
            assert_refused(optimize(tmp_path, str(GOOD), "--out", str(mounted / "run")), "folder-not-writable")
        finally:
            subprocess.run(["umount", str(mounted)], check=True)
        return
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert_refused(optimize(tmp_path, str(GOOD), "--out", str(locked / "run")), "folder-not-writable")


def test_resuming_what_is_not_there(tmp_path: Path) -> None:
    answer = htam("resume", "nothing", "--json", folder=tmp_path)
    assert answer.code == 2
    assert answer.error["code"] == "run-missing"


def test_an_operator_that_cannot_be_rendered_is_named(tmp_path: Path) -> None:
    text = MODEL.format(body="torch.cumsum(x, dim=1)") + "def get_inputs():\n    return [torch.rand(16, 16)]\n"
    (tmp_path / "op.py").write_text(text, encoding="utf-8")
    answer = optimize(tmp_path, "op.py")
    assert answer.code == 1
    assert answer.last["kernel"] is None
    assert "cumsum" in str(answer.last["reason"])


def test_a_strategy_for_a_slot_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "- {id: mine, direction: memory-access, backend: cpp, title: t, how: h, slot: nowhere, block: x}\n",
        encoding="utf-8",
    )
    answer = optimize(tmp_path, str(GOOD), "--strategies", "mine.yaml")
    assert_refused(answer, "strategy-file", "mine", "nowhere")
