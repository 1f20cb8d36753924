"""What a person sees: one line an event, words for the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from htam_agent.cli.optimize import exit_code
from htam_agent.cli.progress import progress_line, short_reason, summary_lines
from htam_agent.graph.events import Event, emit
from htam_agent.runs.records import Result
from htam_agent.verdict import Interval, Speedups

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

    from htam_agent.graph.context import Context


def result(**changes: object) -> Result:
    base: dict[str, object] = {
        "run": "/runs/one", "task": "op-123", "backend": "cpp", "device": "a CPU", "precision": "tf32",
        "policy": "own-kernels-only", "verdict": "correct", "kernel": "/runs/one/kernel.py", "faster": True,
        "speedup": Speedups(eager=2.0, best=1.5), "interval": Interval(low=1.4, high=1.6),
    }  # fmt: skip
    return Result.model_validate({**base, **changes})


def test_a_direction_comes_with_its_reason() -> None:
    event = Event(kind="direction", text="memory-access", time=0.0, step=2, why="loads are scalar")
    assert progress_line(event) == "  2  direction   memory-access: loads are scalar"


def test_a_verdict_comes_with_its_speedup() -> None:
    event = Event(kind="judged", text="correct", time=0.0, step=1, speedup=1.234)
    assert progress_line(event).endswith("correct, 1.23x over best")


def test_what_a_model_or_its_endpoint_says_cannot_steer_a_terminal() -> None:
    sent: list[Event] = []
    runtime = cast("Runtime[Context]", SimpleNamespace(stream_writer=sent.append))
    emit(runtime, "code", "a\x1b[2Jb\nJUDGED: correct", why="\x1b]0;title\x07 slow\x9b")
    assert progress_line(sent[0]).endswith("ab JUDGED: correct: slow")


def test_the_end_names_each_baseline_and_the_kernel() -> None:
    lines = summary_lines(result())
    assert "eager 2.00x, best 1.50x (interval 1.40 to 1.60)" in lines[0]
    assert lines[1] == "kernel: /runs/one/kernel.py"


def test_no_kernel_is_said_so() -> None:
    lines = summary_lines(result(verdict="failed", kernel=None, reason="no candidate was correct"))
    assert "no candidate was correct" in lines[0]
    assert "the original is kept" in lines[1]


def test_exit_codes_follow_the_contract() -> None:
    assert exit_code(result(), require_faster=True, faster_than="best") == 0
    assert exit_code(result(faster=False), require_faster=False, faster_than="best") == 0
    assert exit_code(result(faster=False), require_faster=True, faster_than="best") == 1
    assert exit_code(result(faster=False), require_faster=True, faster_than="eager") == 0
    wide = result(faster=False, interval=Interval(low=0.7, high=2.0))
    assert exit_code(wide, require_faster=True, faster_than="eager") == 1, "0.7 of best is 0.93 of eager"
    assert exit_code(result(verdict="at-floor", kernel=None), require_faster=False, faster_than="best") == 0
    assert exit_code(result(verdict="failed", kernel=None), require_faster=False, faster_than="best") == 1


def test_the_table_keeps_the_score_and_the_plainest_reason() -> None:
    begin = "0.38 to begin with: Bounds all (risk: None)"
    why = f"0.40 of the remaining gap expected; 0.30 by its fit; {begin}; exploration +0.01."
    assert short_reason(why) == "0.40: 0.38 to begin with: Bounds all"
    assert short_reason("0.40 of the remaining gap expected; 0.30 by its fit.") == "0.40: 0.30 by its fit"
    assert short_reason("chosen by a person") == "chosen by a person"
    assert short_reason("") == ""
