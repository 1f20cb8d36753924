"""A hang costs its limit once: afterwards it is refused, unless longer limits or the user ask for another try."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.evaluation.bench import Bench
from htam_agent.evaluation.hangs import Hang, HangMemory, hang_key
from htam_agent.verdict import RunResult
from tests.evaluation.samples import FORWARD, KERNEL, candidate

HANG = candidate("import time\ntime.sleep(1000)\n" + FORWARD)


@given(kept=st.floats(0.1, 1e4), asked=st.floats(0.1, 1e4))
def test_a_longer_limit_is_another_question(
    tmp_path_factory: pytest.TempPathFactory, kept: float, asked: float
) -> None:
    memory = HangMemory(tmp_path_factory.mktemp("hangs"))
    memory.keep("ab", Hang(stage="run", reason="hang", limits={"run": kept, "load": 5.0}))
    found = memory.find("ab", {"run": asked, "load": 5.0})
    assert (found is not None) == (asked <= kept)
    assert memory.find("cd", {}) is None


def test_a_limit_that_was_not_waited_for_is_another_question(tmp_path: Path) -> None:
    memory = HangMemory(tmp_path)
    memory.keep("ab", Hang(stage="run", reason="hang", limits={"run": 5.0}))
    assert memory.find("ab", {"run": 5.0, "total": 1.0}) is None


def test_a_broken_record_and_a_folder_that_cannot_be_written_are_no_errors(tmp_path: Path) -> None:
    memory = HangMemory(tmp_path / "file")
    (tmp_path / "file").write_text("no folder")
    assert not memory.keep("ab", Hang(stage="run", reason="hang"))
    memory = HangMemory(tmp_path / "folder")
    assert memory.keep("ab", Hang(stage="run", reason="hang"))
    (tmp_path / "folder/ab/ab.json").write_text('{"stage": ')
    assert memory.find("ab", {}) is None


def test_texts_of_a_key_do_not_run_into_one_another() -> None:
    assert hang_key("ab", "c") != hang_key("a", "bc")


@pytest.fixture
def limited(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the open bench other limits and a memory of hangs of its own (or none)."""
    session = bench._opened()

    def limit(*, memory: bool = True, **seconds: float) -> None:
        limits = session.limits.model_copy(update=seconds)
        hangs = HangMemory(tmp_path / "hangs") if memory else None
        monkeypatch.setattr(bench, "_session", replace(session, limits=limits, hangs=hangs))

    return limit


def test_a_file_that_hung_is_refused_at_once(limited: Callable[..., None], judge: Callable[..., RunResult]) -> None:
    limited(run_seconds=1.0)
    first = judge(HANG)
    assert first.reason.startswith("hang: no answer within 1 s")
    begin = time.monotonic()
    again = judge(HANG)
    assert time.monotonic() - begin < 0.9
    assert again.verdict == "failed"
    assert again.stage == first.stage == "run"
    assert again.protocols == first.protocols
    assert first.reason in again.reason
    assert any("hang_memory" in check.detail for check in again.checks)
    limited(run_seconds=1.5)
    assert judge(HANG).reason.startswith("hang: no answer within 1.5 s")
    limited(run_seconds=1.0, memory=False)
    assert judge(HANG).reason.startswith("hang: no answer within 1 s")
    limited(run_seconds=20.0)
    assert judge(candidate()).verdict == "correct"


def test_a_rest_of_the_total_limit_is_no_hang(limited: Callable[..., None], judge: Callable[..., RunResult]) -> None:
    limited(run_seconds=20.0, total_seconds=1.0)
    first = judge(HANG)
    assert first.reason.startswith("out of time: no answer within"), first
    assert judge(HANG).reason.startswith("out of time: "), "nothing was remembered"


SPINNING = (
    "template <int n> struct S { static constexpr long v = S<n - 1>::v + S<n - 2>::v; };\n"
    "template <> struct S<0> { static constexpr long v = 0; };\n"
    "template <> struct S<1> { static constexpr long v = 1; };\n"
    "constexpr long spin(long n) { long t = 0; for (long i = 0; i < n; ++i) t += i % 3; return t; }\n"
    "constexpr long a = spin(30000000), b = spin(30000001), c = spin(30000002), d = spin(30000003);\n"
)


def test_a_source_that_makes_the_compiler_spin_is_stopped_and_remembered(
    limited: Callable[..., None], bench: Bench, tmp_path: Path
) -> None:
    spin = tmp_path / "spin.py"
    spin.write_text(candidate(kernel=SPINNING + KERNEL))
    limited(build_seconds=0.4)
    compiled = bench.compile(spin)
    assert not compiled.ok
    assert "longer than 0.4 s" in compiled.reason
    begin = time.monotonic()
    again = bench.compile(spin)
    assert time.monotonic() - begin < 0.3
    assert "not built again" in again.reason
    assert bench.run(again).verdict == "failed"
    assert bench.run(again).stage == "compile"
    limited(build_seconds=0.5)
    assert "longer than 0.5 s" in bench.compile(spin).reason
