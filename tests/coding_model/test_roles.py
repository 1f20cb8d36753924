"""Which model a role asks, what the preflight finds, and models of other providers."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr

from htam_agent.coding.chat import ROLES, Role
from htam_agent.coding.endpoint import Endpoint, RetryRules
from htam_agent.coding.ledger import Budget, Ledger
from htam_agent.coding.opening import open_chat
from htam_agent.coding.preflight import WRONG_SETTING, ask_each
from htam_agent.coding.prices import PriceTable
from htam_agent.coding.role_chat import RoleChat
from htam_agent.coding.roles import ModelChoice, choose_model
from htam_agent.coding.scope import Scope, asking_for
from htam_agent.errors import HtamError, ModelError, SettingsError
from htam_agent.runs.records import RunOptions
from htam_agent.settings import Settings
from tests.support.chat import chat_of, choice_of
from tests.support.endpoint import Reply, completion, failure, scripted

MODEL = RunOptions(backend="cpp", coder="model")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def settings(**given: object) -> Settings:
    return Settings.load({"model": "general", "api_key": "sk-general", "base_url": "http://one/v1", **given})


def test_a_role_without_settings_of_its_own_asks_the_general_model() -> None:
    for role in ROLES:
        choice = choose_model(settings(temperature=0.3, model_timeout_seconds=50), role)
        assert (choice.model, choice.base_url, choice.key) == ("general", "http://one/v1", "sk-general")
        assert (choice.temperature, choice.timeout_seconds) == (0.3, 50)
        assert choice.variable("model") == "HTAM_MODEL"


@pytest.mark.parametrize("role", ROLES)
def test_a_roles_own_settings_win_and_are_named(role: Role) -> None:
    own = {"model": "own", "temperature": 1.0, "max_answer_tokens": 99, "timeout_seconds": 5.0}
    given = settings(**{f"{role}_{name}": value for name, value in own.items()})
    choice = choose_model(given, role)
    assert choice.model_dump(include=set(own)) == own
    assert choice.variable("model") == f"HTAM_{role.upper()}_MODEL"
    assert choice.variable("api_key") == "HTAM_API_KEY"
    other = choose_model(given, next(name for name in ROLES if name != role))
    assert other.model == "general"


@pytest.mark.parametrize(
    "own", [{"code_base_url": "http://two/v1"}, {"code_model": "anthropic:some"}, {"code_base_url": "http://one/v1"}]
)
def test_the_general_key_goes_nowhere_else(own: dict[str, str]) -> None:
    choice = choose_model(settings(**own), "code")
    assert choice.key == ""
    assert choice.variable("api_key") == "HTAM_CODE_API_KEY"
    assert choose_model(settings(**own, code_api_key="sk-own"), "code").key == "sk-own"


def test_a_colon_is_a_provider_only_before_a_known_name() -> None:
    assert ModelChoice(model="llama3:8b").provider is None
    assert ModelChoice(model="anthropic:claude").provider == "anthropic"
    assert ModelChoice(model="openai:gpt-5").bare_model == "gpt-5"


def test_no_key_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    given = settings(code_api_key="sk-of-code")
    choice = choose_model(given, "code")
    chat = RoleChat.from_settings(given)
    shown = f"{choice!r} {choice.model_dump()} {choice.model_dump_json()} {vars(chat)} {given.explain()} {given!r}"
    assert "sk-general" not in shown
    assert "sk-of-code" not in shown


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ({"model": None}, "model-missing", "HTAM_MODEL"),
        ({"api_key": None}, "key-missing", "HTAM_API_KEY"),
        ({"api_key": " "}, "key-missing", "HTAM_API_KEY"),
        ({"base_url": "localhost:8000/v1"}, "model-url", "HTAM_BASE_URL"),
        ({"base_url": "http://"}, "model-url", "HTAM_BASE_URL"),
        ({"repair_base_url": "ftp://x/v1", "repair_api_key": "k"}, "model-url", "HTAM_REPAIR_BASE_URL"),
        ({"code_base_url": "http://two/v1"}, "key-missing", "HTAM_CODE_API_KEY"),
        ({"model": "ollama:llama3"}, "model-provider", "langchain-ollama"),
    ],
)
def test_what_cannot_be_right_is_said_without_a_network(given: dict[str, object], code: str, words: str) -> None:
    loaded = Settings.load(
        {name: value for name, value in {"model": "m", "api_key": "k", **given}.items() if value is not None}
    )
    for checked in (loaded, loaded.model_copy(update={"preflight": False})):
        with pytest.raises(SettingsError) as caught:
            open_chat(MODEL, checked, PriceTable())
        assert caught.value.code == code
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (failure(401, "no such key"), "model-key", "HTAM_CODE_API_KEY"),
        (failure(403, "not yours"), "model-key", "HTAM_CODE_MODEL"),
        (failure(404, "no such model"), "model-missing", "HTAM_CODE_MODEL"),
        (Reply(200, "<html>a portal</html>"), "model-answer", "HTAM_CODE_BASE_URL"),
    ],
)
def test_the_preflight_names_the_setting_that_is_wrong(reply: Reply, code: str, words: str) -> None:
    with scripted(reply) as server:
        own = {"code_model": "own", "code_base_url": server.url, "code_api_key": "sk-own"}
        with pytest.raises(SettingsError) as caught:
            open_chat(MODEL, settings(**own), PriceTable())
        assert len(server.requests) == 1
    assert caught.value.code == code
    assert words in str(caught.value)
    assert "sk-own" not in str(caught.value)


def test_the_preflight_finds_an_address_where_nobody_is() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    with pytest.raises(SettingsError, match="cannot be reached") as caught:
        open_chat(MODEL, settings(base_url=url), PriceTable())
    assert "HTAM_BASE_URL" in caught.value.remedy


def test_an_address_that_swallows_everything_is_no_slow_model() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent, ExitStack() as held:
        for _ in range(4):  # the queue of those who wait to be taken is full; who comes now hears nothing
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with pytest.raises(ModelError, match="cannot be reached") as caught:
            Endpoint(choice_of(url, timeout=1.5), RetryRules(attempts=1)).ask(WHICH)
    assert caught.value.code in WRONG_SETTING, "the preflight names the setting"
    assert "HTAM_BASE_URL" in caught.value.remedy


def test_the_preflight_gives_up_in_time_and_says_how_to_go_without() -> None:
    with scripted(*[Reply(200, completion("late"), delay=20.0)] * 2) as server:
        choice = ModelChoice(model="m", base_url=server.url, api_key=SecretStr("k"))
        started = time.monotonic()
        with pytest.raises(ModelError, match="did not answer") as caught:
            ask_each([choice], seconds=0.5)
        assert time.monotonic() - started < 8.0
    assert "HTAM_PREFLIGHT" in caught.value.remedy


def test_each_endpoint_is_asked_once_and_counts() -> None:
    with scripted(Reply(200, completion("ready", usage=(9, 1)))) as server:
        chat, preflights = open_chat(MODEL, settings(base_url=server.url), PriceTable())
        assert len(server.requests) == 1, "code and repair ask the same endpoint"
    assert chat is not None
    assert [(one.choice.role, one.answer.prompt_tokens) for one in preflights] == [("code", 9)]


def test_the_template_coder_asks_nobody() -> None:
    assert open_chat(RunOptions(backend="cpp"), Settings.load({}), PriceTable()) == (None, [])


def test_a_replayed_run_needs_no_key_and_no_preflight() -> None:
    with pytest.raises(SettingsError, match="is no recording"):
        open_chat(MODEL, Settings.load({"replay": "nowhere"}), PriceTable())
    with pytest.raises(SettingsError, match="Both record and replay"):
        open_chat(MODEL, Settings.load({"replay": "a", "record": "b"}), PriceTable())


class Choice(BaseModel):
    direction: str


def test_structured_output_and_its_fallback_are_told_apart() -> None:
    replies = [
        Reply(200, completion('{"direction": "a"}')),
        failure(400, "response_format is not supported"),
        Reply(200, completion('I think:\n```json\n{"direction": "b"}\n```')),
        Reply(200, completion("I would rather not say.")),
    ]
    with scripted(*replies) as server:
        chat = chat_of(server.url)
        answers = [chat.ask("direct", [("human", "Which?")], Choice) for _ in range(3)]
        requests = server.requests
    assert [(one.structure, one.parsed) for one in answers] == [
        ("json-schema", Choice(direction="a")),
        ("plain-json", Choice(direction="b")),
        ("failed", None),
    ]
    assert ["response_format" in request for request in requests] == [True, True, False, False]
    assert "one JSON object" in str(requests[2]["messages"])


WHICH = [("human", "Which?")]
PROSE = Reply(200, completion("I take a.", usage=(10, 5)))
AS_JSON = Reply(200, completion('{"direction": "a"}', usage=(20, 6)))


def test_an_endpoint_that_ignores_the_schema_is_asked_once_more_in_words() -> None:
    with scripted(PROSE, AS_JSON, AS_JSON) as server:
        chat = chat_of(server.url)
        answers = [chat.ask("direct", WHICH, Choice) for _ in range(2)]
        asked = ["response_format" in request for request in server.requests]
    assert [(one.structure, one.parsed) for one in answers] == [("plain-json", Choice(direction="a"))] * 2
    assert asked == [True, False, False], "what helped is remembered"
    assert [one.prompt_tokens + one.completion_tokens for one in answers] == [15 + 26, 26], "both answers are paid"


@pytest.mark.parametrize("status", [404, 415, 422, 501])
def test_an_endpoint_that_knows_no_schema_is_asked_in_words(status: int) -> None:
    with scripted(failure(status, "response_format"), AS_JSON) as server:
        assert chat_of(server.url).ask("direct", WHICH, Choice).structure == "plain-json"
        assert len(server.requests) == 2, "501 is not tried again as it was"


def test_a_refusal_of_the_question_itself_does_not_turn_structured_output_off() -> None:
    long = failure(400, "the messages are too long")
    with scripted(long, long, AS_JSON, PROSE, PROSE, AS_JSON) as server:
        chat = chat_of(server.url)
        with pytest.raises(ModelError, match="too long"):
            chat.ask("direct", WHICH, Choice)
        answers = [chat.ask("direct", WHICH, Choice).structure for _ in range(3)]
        asked = ["response_format" in request for request in server.requests]
    assert answers == ["json-schema", "failed", "json-schema"]
    assert asked == [True, False, True, True, False, True]


def test_a_gateway_that_wants_the_new_name_of_the_limit_gets_it() -> None:
    refusal = failure(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    with scripted(refusal, Reply(200, completion("yes")), Reply(200, completion("yes"))) as server:
        chat = chat_of(server.url)
        with asking_for(Scope("run", Ledger(None, None, Budget(tokens=9000)), 1, "0001")):
            chat.ask("code", [("human", "?")])
            chat.ask("code", [("human", "?")])
        limits = [sorted(name for name in request if name.startswith("max_")) for request in server.requests]
    assert limits == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


TOO_LARGE = "max_tokens is too large: {}. This model supports at most 16,384 completion tokens."
BEYOND_CONTEXT = (
    "maximum context length is 8192 tokens. However, you requested 32999 (231 in the messages, {} in the completion)"
)


@pytest.mark.parametrize(
    ("texts", "limits"),
    [((TOO_LARGE,), [32_768, 16_384, 16_384]), ((BEYOND_CONTEXT,) * 2, [32_768, 8192, 4096, 4096])],
)
def test_under_a_budget_an_endpoint_gets_the_longest_answer_that_it_takes(
    texts: tuple[str, ...], limits: list[int]
) -> None:
    refusals = [failure(400, text.format(limit)) for text, limit in zip(texts, limits, strict=False)]
    told: list[str] = []
    ledger = Ledger(None, None, Budget(tokens=200_000))
    with scripted(*refusals, *[Reply(200, completion("yes"))] * 2) as server:
        chat = chat_of(server.url)
        with asking_for(Scope("run", ledger, 1, "0001", tell=told.append)):
            assert [chat.ask("code", [("human", "?")]).text for _ in range(2)] == ["yes", "yes"]
        assert [request["max_tokens"] for request in server.requests] == limits
    assert told == [f"{server.url} (scripted) refused a limit of 32,768 tokens for its answer; it gets {limits[-1]:,}"]
    assert ledger.begin(chat.choices["code"], 1, 3).limit == 32_768, "what one endpoint takes binds no other"


def test_a_limit_of_the_user_or_a_refusal_for_another_reason_ends_it() -> None:
    scope = Scope("run", Ledger(None, None, Budget(tokens=200_000)), 1, "0001")
    for most, text in ((20_000, TOO_LARGE), (None, "maximum context length is 8192 tokens, the messages have 9000")):
        with scripted(failure(400, text)) as server, asking_for(scope):
            chat = RoleChat.of_one(choice_of(server.url).model_copy(update={"max_answer_tokens": most}))
            with pytest.raises(ModelError, match="HTAM_MAX_ANSWER_TOKENS"):
                chat.ask("code", [("human", "?")])
            assert len(server.requests) == 1


def test_room_is_reserved_by_bytes() -> None:
    ledger = Ledger(None, None, Budget(tokens=9000))
    with scripted(Reply(200, completion("yes"))) as server, asking_for(Scope("run", ledger, 1, "0001")):
        chat_of(server.url).ask("code", [("human", "核" * 3000)])
        limit = server.requests[0]["max_tokens"]
    assert limit == 9000 - 3001, "about one token a character"


def anthropic(text: str, stop: str = "end_turn") -> Reply:
    """A message as Anthropic's interface gives it."""
    return Reply(
        200,
        {
            "id": "1", "type": "message", "role": "assistant", "model": "scripted", "stop_reason": stop,
            "content": [{"type": "text", "text": text}], "usage": {"input_tokens": 31, "output_tokens": 7},
        },
    )  # fmt: skip


def test_another_provider_by_its_name() -> None:
    pytest.importorskip("langchain_anthropic", reason="the extra [providers] is not installed")
    overloaded = Reply(529, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
    with scripted(overloaded, anthropic("yes"), anthropic("no", "max_tokens"), failure(401, "sk-a is wrong")) as server:
        url = server.url.removesuffix("/v1")
        choice = ModelChoice(model="anthropic:scripted", base_url=url, api_key=SecretStr("sk-a"), timeout_seconds=10)
        chat = RoleChat.of_one(choice, chat_of(url).endpoint("code").rules)
        with asking_for(Scope("run", Ledger(None, None, Budget(tokens=9000)), 1, "0001")):
            answers = [chat.ask("code", [("system", "Be terse."), ("human", "?")]) for _ in range(2)]
            with pytest.raises(HtamError) as caught:
                chat.ask("code", [("human", "?")])
        assert int(str(server.requests[0]["max_tokens"])) < 9000
        assert "sk-a" in str(server.headers[0])
    assert [(one.text, one.prompt_tokens, one.completion_tokens, one.cut_off) for one in answers] == [
        ("yes", 31, 7, False),
        ("no", 31, 7, True),
    ]
    assert caught.value.code == "model-key"
    assert "sk-a" not in str(caught.value)
