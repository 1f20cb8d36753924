"""Whatever an endpoint does, a question ends right: with an answer, a refusal of the step, or one clear error."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from htam_agent.coding.base import Code
from htam_agent.coding.examples import example_request
from htam_agent.coding.ledger import Ledger
from htam_agent.coding.model import ASKS, SHOWN_CHARACTERS, ModelCoder
from htam_agent.coding.scope import Scope, asking_for
from htam_agent.errors import BudgetSpent, ModelError
from tests.support.chat import chat_of, model_coder
from tests.support.endpoint import Reply, completion, failure, scripted
from tests.support.instant import answer

GOOD = answer("1.5")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"


def asked(url: str, timeout: float = 10.0) -> Code:
    return ModelCoder(chat_of(url, timeout, attempts=3)).generate(example_request("cpp"))


@contextmanager
def talking(*pieces: tuple[float, bytes]) -> Iterator[tuple[str, list[int]]]:
    """A server below HTTP: to every connection it sends these pieces, each after its seconds, and hangs up."""
    served: list[int] = []
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            while not stop.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                served.append(1)
                threading.Thread(target=speak, args=(connection,), daemon=True).start()

        def speak(connection: socket.socket) -> None:
            with connection:
                connection.recv(1 << 20)
                for seconds, data in pieces:
                    if stop.wait(seconds):
                        return
                    try:
                        connection.sendall(data)
                    except OSError:
                        return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/v1", served
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(failure(429, "slow down", Retry_After="0.2"), id="429 with Retry-After"),
        pytest.param(failure(500), id="500"),
        pytest.param(Reply(drop=True), id="dropped"),
        pytest.param(Reply(200, '{"choices": [{"mess', {"Content-Type": "application/json"}), id="malformed JSON"),
        pytest.param(Reply(200, completion("")), id="empty answer"),
        pytest.param(Reply(200, completion("I cannot help with that.")), id="refusal in words"),
        pytest.param(Reply(200, completion("Lorem ipsum. " * 80_000)), id="1 MB of text"),
        pytest.param(Reply(200, completion("```python\nclass ModelNew", finish="length")), id="cut off"),
    ],
)
def test_after_a_passing_fault_the_question_is_answered(fault: Reply) -> None:
    with scripted(fault, GOOD) as server:
        code = asked(server.url)
        assert code.source, code.refusal
        assert len(server.requests) == 2
        sent = len(json.dumps(server.requests[1]["messages"]))
    assert sent < 30_000 + 2 * SHOWN_CHARACTERS, "a megabyte is not sent back"


def test_a_refusal_that_stays_is_a_refusal_of_the_step() -> None:
    message = {"role": "assistant", "content": None, "refusal": "That is dangerous."}
    body = {**completion(""), "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
    with scripted(*[Reply(200, body)] * ASKS) as server:
        code = asked(server.url)
    assert not code.source
    assert "refused: That is dangerous" in code.refusal


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Reply(200, "<html>Welcome</html>"), ("not a chat completion", "a web page", "/v1")),
        (Reply(200, 'data: {"x": 1}\n\n', {"Content-Type": "text/event-stream"}), ("a stream though none",)),
        (
            Reply(200, '{"object": "list", "data": []}', {"Content-Type": "application/json"}),
            ("not a chat completion",),
        ),
    ],
)
def test_a_wrong_kind_of_answer_is_not_asked_for_again(fault: Reply, words: tuple[str, ...]) -> None:
    with scripted(fault, GOOD) as server:
        with pytest.raises(ModelError) as caught:
            asked(server.url)
        assert len(server.requests) == 1
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_an_answer_that_breaks_off_in_the_middle_is_asked_for_again() -> None:
    with talking((0.0, HEAD + b'{"choices": [')) as (url, served):
        with pytest.raises(ModelError, match="3 attempts") as caught:
            asked(url)
        assert len(served) == 3
    assert caught.value.code == "model-unreachable"


def test_a_server_that_hangs_is_given_up() -> None:
    with talking((30.0, b"")) as (url, served):
        started = time.monotonic()
        with pytest.raises(ModelError, match=r"within 0\.3 s \(3 attempts\)"):
            asked(url, timeout=0.3)
        assert time.monotonic() - started < 10.0
        assert len(served) == 3


def test_a_server_that_trickles_for_ever_is_given_up() -> None:
    """Each byte comes well within the client's time limit of one read, so that one never ends."""
    with talking((0.0, HEAD), *[(0.1, b" ")] * 600) as (url, _):
        started = time.monotonic()
        with pytest.raises(ModelError, match="did not answer within"):
            asked(url, timeout=0.5)
        assert time.monotonic() - started < 15.0


def test_all_attempts_together_have_a_limit() -> None:
    with scripted(*[failure(500)] * 50) as server:
        chat = chat_of(server.url, attempts=50)
        endpoint = chat.endpoint("code")
        endpoint.rules = endpoint.rules.model_copy(
            update={"base_seconds": 0.4, "max_seconds": 0.4, "total_seconds": 1.0}
        )
        started = time.monotonic()
        with pytest.raises(ModelError, match="500"):
            chat.ask("code", [("human", "?")])
        assert time.monotonic() - started < 10.0
        assert len(server.requests) < 40


def test_the_runs_time_ends_the_wait_for_an_answer() -> None:
    slow = Reply(200, completion("late"), delay=20.0)
    with scripted(slow, slow) as server:
        chat = chat_of(server.url)
        chat.endpoint("code").client()
        with asking_for(Scope("run", Ledger(None), 1, "0001-0-0", time.monotonic() + 1.0)):
            with pytest.raises(BudgetSpent, match="time is up"):
                chat.ask("code", [("human", "?")])
            with pytest.raises(BudgetSpent, match="time is up"):
                chat.ask("code", [("human", "?")])
        assert len(server.requests) == 1, "once it is up nothing is asked"


def test_a_wait_beyond_the_runs_time_is_its_end_and_no_failure_of_the_endpoint() -> None:
    with scripted(failure(429, "slow down", Retry_After="100")) as server:
        scope = Scope("run", Ledger(None), 1, "0001-0-0", time.monotonic() + 8.0)
        with asking_for(scope), pytest.raises(BudgetSpent, match=r"time is up.*429: slow down") as caught:
            chat_of(server.url).ask("code", [("human", "?")])
        assert len(server.requests) == 1
    assert caught.value.code == "time-is-up"


@pytest.mark.parametrize("code", [429, "503"])
def test_a_gateways_error_in_a_whole_answer_is_told_by_its_code(code: int | str) -> None:
    error = Reply(200, {"error": {"code": code, "message": "upstream is busy"}})
    with scripted(error, GOOD) as server:
        assert asked(server.url).source
        assert len(server.requests) == 2
    with scripted(*[error] * 3) as server, pytest.raises(ModelError, match=f"answered {code}: upstream is busy"):
        asked(server.url)
    refusal = Reply(200, {"error": {"code": 401, "message": "no such key"}})
    with scripted(refusal) as server, pytest.raises(ModelError, match="answered 401") as caught:
        asked(server.url)
    assert caught.value.code == "model-key"


@pytest.mark.exhaustive
def test_an_answer_after_90_seconds_is_waited_for() -> None:
    late = answer("1.5")
    late.delay = 90.0
    with scripted(late) as server:
        assert asked(server.url, timeout=900.0).source
        assert len(server.requests) == 1


def test_who_waits_is_told_of_failed_attempts() -> None:
    told: list[str] = []
    scope = Scope("run", Ledger(None), 1, "0001-0-0", tell=told.append)
    with scripted(failure(503, "busy"), GOOD) as server, asking_for(scope):
        assert model_coder(server.url).generate(example_request("cpp")).source
    assert len(told) == 1
    assert "503" in told[0]
    assert "busy" in told[0]
