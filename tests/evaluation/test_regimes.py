"""A candidate is timed under the flags of the protocol that decides, and both stopwatches are said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.evaluation.clock_checks import clock_checks
from htam_agent.evaluation.plans import PROTOCOLS, regime_of
from htam_agent.evaluation.proof import Block
from htam_agent.evaluation.rounds import Rounds
from htam_agent.task import Task
from tests.evaluation.samples import FORWARD, TASK, candidate

WATCHES_FLAGS = candidate(
    f"""
    frame, timed = sys._getframe(1), False
    while frame is not None:
        timed, frame = timed or frame.f_code.co_name == "_measure", frame.f_back
    assert not (timed and torch.backends.cuda.matmul.allow_tf32), "other flags than it left"
    {FORWARD}
    """,
    top="import sys",
)
FAILING = "#!/bin/sh\n[ \"$1\" = -v ] && exit 0\necho 'clock.c:1: error: no such type' >&2\nexit 1\n"


def test_flags_follow_the_protocol_that_decides() -> None:
    assert [name for name in PROTOCOLS if regime_of(name) == "defaults"] == ["kernelbench", "verified"]


def test_verified_times_the_flags_that_the_file_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a compiler that fails for the harness's own C: what is timed then is said for both sides."""
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text(FAILING)
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "kernel.py").write_text(WATCHES_FLAGS)
    task, limits = Task.parse(str(tmp_path / "task.py")), Limits(run_seconds=20)
    with Bench(task, backend="cpp", protocol="verified", folder=tmp_path / "run", limits=limits) as bench:
        result = bench.run(bench.compile(tmp_path / "kernel.py"))
    assert result.verdict == "correct", result
    clock = next(check for check in result.checks if check.name == "clock")
    assert clock.passed
    for side in ("reference", "candidate"):
        assert f"the native stopwatch is not used for the {side}: clock.c was not built" in clock.detail


def test_two_kinds_of_stopwatch_are_no_equal_conditions(bench: Bench) -> None:
    block = Block(1.0, 101.0, 1.0, 100, 1.0, 0.0)
    rounds = Rounds("cpu", 3, [1.0], [1.0], [1.0], [1.0], ours=[block] * 3, theirs=[block] * 3)
    loaded = bench._opened().loaded
    checks, distrust = clock_checks(rounds, loaded, "", cold=False, alone=False)
    assert (checks[1].passed, distrust) == (True, "")
    assert "stopwatch" not in checks[1].detail
    checks, distrust = clock_checks(rounds, loaded, "it cannot be loaded", cold=False, alone=False)
    assert (checks[1].passed, distrust) == (False, "")
    assert "for the candidate: it cannot be loaded" in checks[1].detail
    assert "not timed by the same loop" in checks[1].detail
