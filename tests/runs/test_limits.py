"""Which finished runs go on when they are resumed, and under which limits."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from htam_agent.runs.limits import limited_anew, may_go_on
from htam_agent.runs.records import Result, RunOptions
from htam_agent.settings import Settings

BEFORE = RunOptions(backend="cpp", max_tokens=100, max_seconds=60.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stopped(by: Literal["", "budget", "time", "model"]) -> Result:
    return Result(
        run="run", task="task", backend="cpp", device="a processor", precision="tf32", policy="own-kernels-only",
        verdict="correct", unfinished=by,
    )  # fmt: skip


def test_limits_that_are_given_now_win_and_those_of_files_do_not(folder: Path) -> None:
    (folder / "htam.toml").write_text("max_tokens = 5\nmax_cost = 1.0\n")
    assert limited_anew(BEFORE, Settings.load()) == BEFORE
    now = limited_anew(BEFORE, Settings.load({"max_tokens": 900}))
    assert (now.max_tokens, now.max_cost, now.max_seconds) == (900, None, 60.0)


@pytest.mark.parametrize(
    ("by", "change", "goes_on"),
    [
        ("", {"max_tokens": 900}, False),
        ("budget", {}, False),
        ("budget", {"max_tokens": 900}, True),
        ("budget", {"max_cost": 3.0}, True),
        ("budget", {"max_seconds": 90.0}, False),
        ("time", {"max_seconds": 90.0}, True),
        ("time", {"max_tokens": 900}, False),
        ("model", {}, True),
    ],
)
def test_a_run_goes_on_where_what_stopped_it_is_gone(
    by: Literal["", "budget", "time", "model"], change: dict[str, object], goes_on: bool
) -> None:
    assert may_go_on(stopped(by), BEFORE, BEFORE.model_copy(update=change)) == goes_on
