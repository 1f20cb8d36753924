"""`htam evaluate` on a GPU: both clocks, the state of the GPU, a warm L2 on request, and a task that is too large."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from htam_agent.backends.cuda import CudaBackend
from htam_agent.schemas import FOLDER
from tests.evaluation.cuda_samples import TASK, WRONG, candidate
from tests.support.command import htam

pytestmark = pytest.mark.gpu

OPTIONS = ("--backend", "cuda", "--no-compile-baseline", "--json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    answer = CudaBackend().available()
    if not answer.ok:
        pytest.skip(f"no CUDA device: {answer.reason}")
    (tmp_path / "task.py").write_text(TASK, encoding="utf-8")
    (tmp_path / "right.py").write_text(candidate(), encoding="utf-8")
    (tmp_path / "wrong.py").write_text(next(iter(WRONG.values())), encoding="utf-8")
    return tmp_path


def test_a_right_and_a_wrong_kernel_with_the_deep_checks(folder: Path) -> None:
    answer = htam("evaluate", "task.py", "right.py", "wrong.py", *OPTIONS, "--deep", folder=folder, timeout=300)
    assert answer.code == 1, answer.stderr
    right, wrong = [json.loads(line) for line in answer.stdout.splitlines()]
    schema = json.loads((FOLDER / "evaluate.json").read_text(encoding="utf-8"))
    for value in (right, wrong):
        jsonschema.validate(value, schema)
    assert (right["verdict"], wrong["verdict"]) == ("correct", "wrong"), right["reason"]
    assert right["device_ms"]["candidate"] < right["device_ms"]["reference"]
    assert right["call_ms"]["candidate"] > 0
    assert right["gpu_before"]["sm_clock_mhz"] > 0
    assert 0 < right["fractions"]["candidate"] < 1.1
    assert {"kernelbench", "verified", "verified-fair", "strict"} == set(right["protocols"])
    assert "deep" in right["stages"]
    assert "deep" not in wrong["stages"]


def test_a_warm_cache_is_said_and_a_batch_works(folder: Path) -> None:
    (folder / "b.jsonl").write_text('{"task": "task.py", "kernel": "right.py", "id": "a"}\n', encoding="utf-8")
    answer = htam("evaluate", "--batch", "b.jsonl", *OPTIONS, "--warm-l2", folder=folder, timeout=300)
    assert answer.code == 0, answer.stderr
    result, summary = [json.loads(line) for line in answer.stdout.splitlines()]
    assert result["verdict"] == "correct", result["reason"]
    (clock,) = [check for check in result["checks"] if check["name"] == "clock"]
    assert "L2" in clock["detail"]
    assert summary["verdicts"] == {"correct": 1}


def test_a_task_that_is_too_large_for_the_device_is_no_wrong_kernel(folder: Path) -> None:
    (folder / "huge.py").write_text(TASK.replace("4096, 2048", "1 << 22, 1 << 14"), encoding="utf-8")
    answer = htam("evaluate", "huge.py", "right.py", *OPTIONS, folder=folder, timeout=300)
    assert answer.code == 2
    assert answer.error["code"] == "task-too-large", answer.error
