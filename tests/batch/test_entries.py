"""A batch file's lines: entries, or why there is none; no line stops another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.batch.entries import LINE_LIMIT, located, parse_line, read_batch
from htam_agent.errors import UsageError


def test_an_entry_with_everything() -> None:
    fields = {
        "task": "a.py:Model", "kernel": "k.py", "id": "one", "backend": "cpp", "precision": "ieee",
        "protocol": "verified", "policy": "own-kernels-only", "deep": True, "compile_baseline": False, "facts": False,
    }  # fmt: skip
    line = parse_line(3, json.dumps(fields).encode())
    assert line.entry is not None
    assert line.entry.model_dump() == fields


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"nonsense", "JSON"),
        (b'["a.py", "k.py"]', "list"),
        (b'{"task": "a.py"}', "kernel"),
        (b'{"task": "", "kernel": "k.py"}', "task"),
        (b'{"task": "a.py", "kernel": "k.py", "precison": "ieee"}', "precison"),
        (b'{"task": "a.py", "kernel": "k.py", "protocol": "lenient"}', "protocol"),
        (b'{"task": "a.py", "kernel": 3}', "kernel"),
        (b"\xff\xfe", "UTF-8"),
        (b"[" * 100_000, "JSON"),
        (b" " + b"x" * LINE_LIMIT, "bytes"),
    ],
)
def test_a_line_that_does_not_fit_says_why(raw: bytes, word: str) -> None:
    line = parse_line(1, raw)
    assert line.entry is None
    assert word in line.problem


@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_are_lines_with_an_entry_or_a_problem(
    tmp_path_factory: pytest.TempPathFactory, raws: list[bytes]
) -> None:
    file = tmp_path_factory.mktemp("batch") / "b.jsonl"
    file.write_bytes(b"\n".join(raws))
    for line in read_batch(file):
        assert (line.entry is None) == bool(line.problem)


def test_blank_lines_and_a_byte_order_mark_are_nothing(tmp_path: Path) -> None:
    file = tmp_path / "b.jsonl"
    entry = b'{"task": "a.py", "kernel": "k.py"}'
    file.write_bytes(b"\xef\xbb\xbf" + entry + b"\r\n\n  \n" + entry)
    assert [(line.number, line.problem) for line in read_batch(file)] == [(1, ""), (4, "")]


def test_a_missing_batch_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.jsonl"):
        read_batch(tmp_path / "nowhere.jsonl")


def test_relative_tasks_lie_beside_the_batch_file(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("", encoding="utf-8")
    assert located(tmp_path, "a.py") == str(tmp_path / "a.py")
    assert located(tmp_path, "a.py:Other") == f"{tmp_path / 'a.py'}:Other"
    assert located(tmp_path, "text") == str(tmp_path / "text")
    assert located(tmp_path, "/abs/a.py") == "/abs/a.py"
    assert located(tmp_path, "package.module:factory") == "package.module:factory"


def test_facts_are_asked_for_without_a_kernel() -> None:
    asked = parse_line(1, b'{"task": "a.py", "facts": true}').entry
    assert asked is not None
    assert asked.facts
    assert "kernel is missing" in parse_line(1, b'{"task": "a.py"}').problem
    assert "has no kernel" in parse_line(1, b'{"task": "a.py", "kernel": "k.py", "facts": true}').problem
