"""The results file: one owner, whole lines, a torn end repaired, somebody else's file left alone."""

from __future__ import annotations

import errno
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.batch.results import BatchError, BatchProblem, ResultsFile
from htam_agent.errors import RunError


def line(key: str, again: bool = False) -> str:
    problem = BatchProblem(code="task", message="It is gone.", remedy="Put it back.")
    return BatchError(line=1, error=problem, key=key, again=again).to_json()


def test_what_was_written_is_known_to_the_next_owner(tmp_path: Path) -> None:
    with ResultsFile(tmp_path / "r.jsonl") as file:
        for key in ("a", "b", "a"):
            file.append(line(key))
        file.append(line("c", again=True))
    with ResultsFile(tmp_path / "r.jsonl") as file:
        assert file.done == {"a": ["error", "error"], "b": ["error"]}
        assert file.repaired_bytes == 0


@given(cut=st.integers(0, 400))
def test_a_file_cut_anywhere_in_its_last_line_is_repaired(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("results") / "r.jsonl"
    whole, last = line("a").encode() + b"\n", line("b").encode() + b"\n"
    cut = min(cut, len(last))
    path.write_bytes(whole + last[:cut])
    complete = cut >= len(last) - 1  # only the end of line is missing
    with ResultsFile(path) as file:
        assert set(file.done) == ({"a", "b"} if complete else {"a"})
        assert file.repaired_bytes == (0 if complete else cut)
        file.append(line("c"))
    expected = whole + (last if complete else b"") + line("c").encode() + b"\n"
    assert path.read_bytes() == expected


@pytest.mark.parametrize(
    "content", [b"my notes\n", b"my notes", b'{"schema":"htam.evaluate/1"}\n', b"[1]\n", b"\n", b'{"key": 1}\n']
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(RunError, match="something else than results"):
        ResultsFile(path)
    assert path.read_bytes() == content


def test_a_second_owner_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = ResultsFile(tmp_path / "r.jsonl")
    with pytest.raises(RunError, match="Another process") as caught:
        ResultsFile(tmp_path / "r.jsonl")
    assert caught.value.code == "batch-locked"
    first.close()
    ResultsFile(tmp_path / "r.jsonl").close()


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file of this process may grow beyond 100 bytes: a full disk, as far as write() can tell."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, small_disk: None) -> None:
    with ResultsFile(tmp_path / "r.jsonl") as file, pytest.raises(RunError, match="cannot be written") as caught:
        file.append(line("a"))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno in (errno.EFBIG, errno.ENOSPC)
    assert (tmp_path / "r.jsonl").read_bytes() == b""


def test_a_folder_is_no_results_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be written"):
        ResultsFile(tmp_path)
