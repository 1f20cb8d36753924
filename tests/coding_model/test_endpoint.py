"""Retries, errors and token counts over real loopback HTTP."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from htam_agent.coding.endpoint import Endpoint, RetryRules
from htam_agent.coding.faults import retry_after
from htam_agent.coding.roles import ModelChoice
from htam_agent.errors import ModelError
from tests.support.endpoint import Reply, completion, failure, scripted

KEY = "sk-very-secret-key"
RULES = RetryRules(attempts=3, base_seconds=0.01, max_seconds=0.02)
QUESTION = [("system", "You are terse."), ("human", "Say yes.")]


def endpoint(url: str, rules: RetryRules = RULES, timeout: float = 10.0, log: list[str] | None = None) -> Endpoint:
    report = log.append if log is not None else None
    choice = ModelChoice(model="scripted", api_key=SecretStr(KEY), base_url=url, timeout_seconds=timeout)
    return Endpoint(choice, rules, report)


def test_an_answer_with_its_tokens() -> None:
    with scripted(Reply(200, completion("yes", usage=(123, 45)))) as server:
        answer = endpoint(server.url).ask(QUESTION)
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens) == ("yes", 123, 45)
    assert not answer.estimated
    assert not answer.cut_off
    assert server.requests[0]["messages"] == [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Say yes."},
    ]
    assert server.requests[0]["model"] == "scripted"
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_missing_token_counts_are_estimated_and_marked() -> None:
    with scripted(Reply(200, completion("y" * 400, usage=None))) as server:
        answer = endpoint(server.url).ask([("human", "x" * 800)])
    assert (answer.prompt_tokens, answer.completion_tokens, answer.estimated) == (200, 100, True)


def test_an_answer_at_its_length_limit_is_marked() -> None:
    with scripted(Reply(200, completion("half", finish="length"))) as server:
        assert endpoint(server.url).ask(QUESTION).cut_off


def test_retry_after_is_honoured() -> None:
    with scripted(failure(429, "slow down", Retry_After="0.6"), Reply(200, completion("yes"))) as server:
        assert endpoint(server.url).ask(QUESTION).text == "yes"
    assert server.times[1] - server.times[0] >= 0.6


def test_a_retry_after_beyond_all_patience_fails_at_once() -> None:
    with scripted(failure(429, "come back tomorrow", Retry_After="86400")) as server:
        with pytest.raises(ModelError) as caught:
            endpoint(server.url).ask(QUESTION)
        assert len(server.requests) == 1
    assert caught.value.code == "model-rate"


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_passing_failures_are_retried(status: int) -> None:
    log: list[str] = []
    with scripted(failure(status), failure(status), Reply(200, completion("yes"))) as server:
        assert endpoint(server.url, log=log).ask(QUESTION).text == "yes"
        assert len(server.requests) == 3
    assert len(log) == 2
    assert str(status) in log[0]


@pytest.mark.parametrize(
    ("status", "code", "setting"),
    [
        (400, "model-refused", "HTAM_MODEL"),
        (401, "model-key", "HTAM_API_KEY"),
        (403, "model-key", "HTAM_API_KEY"),
        (404, "model-missing", "HTAM_BASE_URL"),
        (422, "model", ""),
    ],
)
def test_a_wrong_request_is_not_repeated(status: int, code: str, setting: str) -> None:
    with scripted(failure(status, f"because of {KEY}"), Reply(200, completion("yes"))) as server:
        with pytest.raises(ModelError) as caught:
            endpoint(server.url).ask(QUESTION)
        assert len(server.requests) == 1
    assert caught.value.code == code
    assert str(status) in caught.value.message
    assert setting in caught.value.remedy
    assert KEY not in str(caught.value)


def test_attempts_are_counted_once_not_multiplied() -> None:
    with scripted(*[failure(500)] * 20) as server:
        with pytest.raises(ModelError, match="500"):
            endpoint(server.url).ask(QUESTION)
        assert len(server.requests) == RULES.attempts


def test_a_dropped_connection_is_retried() -> None:
    with scripted(Reply(drop=True), Reply(drop=True), Reply(200, completion("yes"))) as server:
        assert endpoint(server.url).ask(QUESTION).text == "yes"
        assert len(server.requests) == 3


def test_a_slow_answer_times_out_and_names_the_setting() -> None:
    with scripted(*[Reply(200, completion("late"), delay=2.0)] * 2) as server:
        started = time.monotonic()
        with pytest.raises(ModelError, match=r"within 0\.3 s") as caught:
            endpoint(server.url, RULES.model_copy(update={"attempts": 2}), timeout=0.3).ask(QUESTION)
        assert time.monotonic() - started < 1.9
        assert len(server.requests) == 2
    assert "HTAM_MODEL_TIMEOUT_SECONDS" in caught.value.remedy
    assert caught.value.exit_code == 3


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(ModelError) as caught:
        endpoint(f"http://127.0.0.1:{port}/v1").ask(QUESTION)
    assert caught.value.code == "model-unreachable"
    assert "HTAM_BASE_URL" in caught.value.remedy


@pytest.mark.parametrize("body", ["<html>Welcome</html>", "", '{"object": "list"}', "null"])
def test_something_that_is_no_chat_completion(body: str) -> None:
    kind = "application/json" if body[:1] in "{n" else "text/html"
    with (
        scripted(*[Reply(200, body, {"Content-Type": kind})] * RULES.attempts) as server,
        pytest.raises(ModelError) as caught,
    ):
        endpoint(server.url).ask(QUESTION)
    assert "/v1" in caught.value.remedy


def test_retry_after_may_be_a_date() -> None:
    moment = datetime.now(UTC) + timedelta(seconds=30)
    wait = retry_after(format_datetime(moment, usegmt=True))
    assert wait is not None
    assert 25 < wait <= 31
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


@given(st.text(max_size=40))
def test_any_retry_after_is_read_without_failing(value: str) -> None:
    wait = retry_after(value)
    assert wait is None or wait >= 0
