"""Logs: to stderr alone, in the asked form, from structlog and from the standard library alike."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from htam_agent.logging import set_up_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_json_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "json")
    structlog.get_logger("htam").info("step", step=3, path="a/b")
    logging.getLogger("some.library").warning("careful: %s", "hot")
    logging.getLogger("some.library").info("chatter")
    shown = capsys.readouterr()
    lines = [json.loads(line) for line in shown.err.splitlines()]
    assert shown.out == ""
    assert [(line["event"], line["level"]) for line in lines] == [("step", "info"), ("careful: hot", "warning")]
    assert lines[0]["step"] == 3
    assert lines[0]["timestamp"].endswith("Z")


def test_an_exception_is_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "json")
    try:
        raise ValueError("so\nit is")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError" in json.loads(line)["exception"]


def test_the_level_holds_and_the_last_call_counts(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("debug", "json")
    set_up_logging("warning", "console")
    log = structlog.get_logger()
    log.info("quiet")
    log.warning("loud", step=1)
    logging.getLogger("other").error("once")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "quiet" not in shown.err
    assert shown.err.count("loud") == 1
    assert shown.err.count("once") == 1, "a second call must not double the standard library's lines"
    with pytest.raises(json.JSONDecodeError):
        json.loads(shown.err.splitlines()[0])
