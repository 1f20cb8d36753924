"""Short logs keep the first error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from htam_agent.backends.logs import first_error, shorten
from htam_agent.backends.resources import parse_resources, without_report


@given(st.lists(st.text(max_size=60), max_size=200), st.integers(200, 2000))
def test_the_limit_holds_and_the_first_error_stays(lines: list[str], limit: int) -> None:
    noise = [line.replace("rror", "") for line in lines]
    log = "\n".join([*noise, "k.cpp:3:1: error: expected ';'", *noise])
    short = shorten(log, limit)
    assert len(short) <= limit
    assert "expected ';'" in short


def test_a_short_log_stays_as_it_is() -> None:
    assert shorten("warning: a\n") == "warning: a"


def test_first_error_names_the_line() -> None:
    assert first_error("note: x\nk.cu(1): error: y\nk.cu(2): error: z") == "k.cu(1): error: y"
    assert first_error("") == ""


@given(st.text(max_size=400))
def test_any_log_can_be_read_for_resources(log: str) -> None:
    parse_resources(log)
    without_report(log)
