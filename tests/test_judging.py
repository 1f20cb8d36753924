"""`evaluate` as a library: the same verdicts, one by one, with bad files among good ones, and batches."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from htam_agent import HtamError, evaluate
from htam_agent.errors import UsageError
from htam_agent.evaluation.judge import PROTOCOLS
from htam_agent.judging import BUSY, Evaluation, file_sha256, machine_checks, parse_protocols
from htam_agent.verdict import RunResult
from tests.evaluation.samples import TASK, WRONG, candidate


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "task.py").write_text(TASK, encoding="utf-8")
    (tmp_path / "good.py").write_text(candidate(), encoding="utf-8")
    (tmp_path / "zeros.py").write_text(WRONG["zeros"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_by_one_the_same_kernel_twice_and_a_task_given_by_name(folder: Path) -> None:
    asked: list[str] = []

    def kernels() -> Iterator[str]:
        for name in ("zeros.py", "nowhere.py", "zeros.py"):
            asked.append(name)
            yield name

    found = evaluate("task.py", kernels(), backend="cpp", protocol="verified")
    first = next(found)
    assert asked == ["zeros.py"], "a kernel is read when its turn comes"
    second, third = found
    assert [value.verdict for value in (first, second, third)] == ["wrong", "failed", "wrong"]
    assert [value.kernel for value in (first, second, third)] == ["zeros.py", "nowhere.py", "zeros.py"]
    assert first.protocol == "verified"
    assert set(first.protocols) == set(PROTOCOLS)
    assert first.kernel_sha256 == third.kernel_sha256 == file_sha256(folder / "zeros.py")
    assert second.kernel_sha256 == ""
    assert json.loads(first.to_json())["schema"] == "htam.evaluate/1"


@pytest.mark.slow
def test_a_batch_in_the_library_goes_on_where_it_was_closed(folder: Path) -> None:
    entries = [{"task": "task.py", "kernel": "zeros.py", "id": name} for name in "abc"]
    (folder / "b.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    begun = evaluate(batch="b.jsonl", out="r.jsonl", backend="cpp")
    assert next(begun).id == "a"
    assert isinstance(begun, Iterator)
    begun.close()
    assert [value.id for value in evaluate(batch="b.jsonl", out="r.jsonl", backend="cpp")] == ["b", "c"]
    assert list(evaluate(batch="b.jsonl", out="r.jsonl", backend="cpp")) == []


def test_a_batch_and_a_task_at_once_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="names its own"):
        evaluate("task.py", "good.py", batch="b.jsonl")
    with pytest.raises(HtamError, match="Nothing to evaluate"):
        evaluate()


def test_everything_that_the_evaluator_answers_is_in_an_evaluation() -> None:
    assert set(RunResult.model_fields) <= set(Evaluation.model_fields)


def test_protocols_are_named_in_any_order_and_unknown_ones_refused() -> None:
    assert parse_protocols("") == PROTOCOLS
    assert parse_protocols("strict, kernelbench") == ("kernelbench", "strict")
    with pytest.raises(UsageError, match="lenient"):
        parse_protocols("strict,lenient")


def test_a_busy_machine_is_said_and_an_idle_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "getloadavg", lambda: (BUSY * cores, 0.0, 0.0))
    assert machine_checks() == []
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0 * cores, 0.0, 0.0))
    (check,) = machine_checks()
    assert check.detail == f"load {3.0 * cores:.1f} on {cores} cores: intervals will be wide"


def test_what_is_no_file_has_no_hash(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "nowhere", Path("/dev/zero")):
        assert file_sha256(path) == ""


@pytest.mark.parametrize("name", ["run_seconds", "total_seconds"])
def test_a_wrong_setting_of_a_call_is_named_as_the_caller_spelled_it(folder: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        evaluate("task.py", "good.py", backend="cpp", **{name: -1})
    assert caught.value.message.startswith(f"{name} = -1 (from the call)")
    assert "--" not in str(caught.value)
