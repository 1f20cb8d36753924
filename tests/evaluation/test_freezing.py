"""A candidate runs while it is asked and never else, and what it puts off until then is found."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from htam_agent.evaluation.freezing import freeze, thaw
from htam_agent.evaluation.proof import SHORT_MS, ShortBlocks, left_out
from htam_agent.evaluation.rounds import Rounds
from htam_agent.verdict import RunResult
from tests.evaluation.samples import FORWARD, candidate

COUNTING = """
import os, sys, threading, time
def count(name):
    with open(os.path.join(sys.argv[1], name), "ab", buffering=0) as file:
        while True:
            file.write(b"x")
            time.sleep(0.001)
if os.fork() == 0:
    os.setsid()
    count("child")
threading.Thread(target=count, args=("thread",)).start()
count("main")
"""


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a thread and a child in a session of its own, each of which writes on and on."""
    process = subprocess.Popen([sys.executable, "-c", COUNTING, str(tmp_path)])
    deadline = time.monotonic() + 30
    while not all((tmp_path / name).exists() for name in ("main", "thread", "child")):
        assert time.monotonic() < deadline, "it did not start"
        time.sleep(0.01)
    yield process
    freeze(process.pid)
    for name in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        subprocess.run(["kill", "-9", name])
    process.kill()
    process.wait()


def sizes(folder: Path) -> list[int]:
    return [(folder / name).stat().st_size for name in ("main", "thread", "child")]


def test_everything_that_a_process_started_stops_and_goes_on(counting: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert freeze(counting.pid) == ""
    time.sleep(0.05)
    before = sizes(tmp_path)
    time.sleep(0.2)
    assert sizes(tmp_path) == before
    thaw(counting.pid)
    deadline = time.monotonic() + 20
    while any(now <= was for now, was in zip(sizes(tmp_path), before, strict=True)):
        assert time.monotonic() < deadline, "it did not go on"
        time.sleep(0.01)


def test_the_dead_need_no_stopping() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert freeze(process.pid) == ""
    thaw(process.pid)


def test_what_is_computed_when_outputs_are_asked_for_is_wrong(judge: Callable[..., RunResult]) -> None:
    """The call returns memory that is filled at the hand-over, by then from inputs that were overwritten."""
    lazy = candidate(
        """
        z = torch.empty_like(x)
        PENDING[id(z)] = (x, y, self.weight, z)
        return z
        """,
        top="""
        import htam_agent.evaluation.candidate as harness
        PENDING = {}
        before = harness.Candidate._hand_over
        def hand_over(self, outputs):
            work = PENDING.pop(id(outputs), None)
            if work is not None:
                launch(*work)
            PENDING.clear()
            return before(self, outputs)
        harness.Candidate._hand_over = hand_over
        """,
    )
    result = judge(lazy, timing=True)
    assert result.verdict in ("wrong", "quarantined"), result
    assert result.stage == "time"
    assert not result.faster
    assert judge(candidate(FORWARD), timing=True).verdict == "correct"


def test_calls_that_are_left_out_of_long_blocks_show_in_short_ones() -> None:
    short = ShortBlocks(3, ours=[12.9, 12.6, 15.0], theirs=[1.5, 1.4, 1.6], empty=[0.3, 0.31, 0.4])
    assert "left out" in left_out(short, claimed_ms=0.003, their_ms=0.34, kind="cpu")
    assert left_out(short, claimed_ms=4.1, their_ms=0.34, kind="cpu") == ""


@pytest.mark.parametrize("truth", [0.01, 0.1, 1.0, 10.0])
def test_an_honest_claim_stands_when_machines_wake_slowly(truth: float) -> None:
    """The reference's short blocks say how much slower first calls are on this machine."""
    slower = 0.3
    ours, theirs = ([0.3 + 3 * (time_ms + slower)] for time_ms in (truth, 2 * truth))
    assert left_out(ShortBlocks(3, ours, theirs, [0.3]), truth, 2 * truth, "cuda") == ""
    assert (
        left_out(
            ShortBlocks(3, [0.3 + 3 * (truth + SHORT_MS["cuda"])], [0.3 + 6 * truth], [0.3]), truth, 2 * truth, "cuda"
        )
        == ""
    )


def test_a_busy_machine_makes_handing_over_slower_for_everybody() -> None:
    rounds = Rounds("cpu", 3, handing_ms=[4.0, 2.0], handing_limit_ms=1.5)
    assert "2 ms at least" in rounds.late
    rounds.short = ShortBlocks(3, empty=[0.2, 1.1])
    assert "less than 1.7 ms" in rounds.late
    rounds.short = ShortBlocks(3, empty=[0.9, 1.1])
    assert rounds.late == ""


def test_nothing_is_alleged_without_blocks() -> None:
    assert left_out(ShortBlocks(3), 1.0, 1.0, "cpu") == ""
