"""Record and replay at the chat: the same questions get the same answers, any other fails loudly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from htam_agent.coding.chat import Answer, Message
from htam_agent.coding.endpoint import RetryRules
from htam_agent.coding.ledger import Budget, Ledger
from htam_agent.coding.recording import Recorder, Replayer, comparable, first_difference
from htam_agent.coding.role_chat import RoleChat
from htam_agent.coding.scope import Scope, asking_for
from htam_agent.errors import BudgetSpent, ModelError, RunError, SettingsError
from tests.support.chat import KEY, choice_of
from tests.support.endpoint import Reply, completion, failure, scripted

QUESTION: list[Message] = [("system", "You are terse."), ("human", "The kernel took 1.25 ms. Go on?")]


class Choice(BaseModel):
    direction: str


def scope(place: str = "0001-0-0", run: str = "run", ledger: Ledger | None = None) -> Scope:
    return Scope(run, ledger if ledger is not None else Ledger(None), 1, place)


def recorded(folder: Path) -> None:
    """Two exchanges at one place and one at another, of which one holds the key in its text."""
    with scripted(
        Reply(200, completion(f"yes, with {KEY}")),
        Reply(200, completion("no", finish="length", usage=None)),
        Reply(200, completion('{"direction": "data-reuse"}')),
    ) as server:
        choice = choice_of(server.url)
        chat = RoleChat({"code": choice, "direct": choice}, recorder=Recorder(folder, 7, [KEY]))
        with asking_for(scope()):
            chat.ask("code", QUESTION)
            chat.ask("code", QUESTION)
        with asking_for(scope("0002")):
            chat.ask("direct", QUESTION, Choice)


def replaying(folder: Path) -> RoleChat:
    choice = choice_of("http://127.0.0.1:9/v1")
    return RoleChat({"code": choice, "direct": choice}, replayer=Replayer(folder))


def test_the_same_questions_get_the_same_answers_without_a_network(tmp_path: Path) -> None:
    recorded(tmp_path)
    chat = replaying(tmp_path)
    ledger = Ledger(None)
    with asking_for(scope(ledger=ledger)):
        first = chat.ask("code", [QUESTION[0], ("human", "The kernel took 0.75 ms. Go on?")])
        second = chat.ask("code", QUESTION)
    with asking_for(scope("0002", ledger=ledger)):
        third = chat.ask("direct", QUESTION, Choice)
    assert first.text == "yes, with ***"
    assert (second.text, second.cut_off, second.estimated) == ("no", True, True)
    assert third.parsed == Choice(direction="data-reuse")
    assert third.structure == "json-schema"
    assert len(ledger.uses()) == 3, "recorded answers count as they did"
    assert KEY not in "".join(path.read_text() for path in tmp_path.rglob("*.json"))


def test_a_replay_ends_at_its_budget_too(tmp_path: Path) -> None:
    recorded(tmp_path)
    with asking_for(scope(ledger=Ledger(None, None, Budget(tokens=100)))), pytest.raises(BudgetSpent):
        replaying(tmp_path).ask("code", QUESTION)


@pytest.mark.parametrize(
    ("place", "question", "words"),
    [
        ("0001-0-0", [QUESTION[0], ("human", "The kernel took 1.25 ms. Stop?")], ("message 2", "Go on?", "Stop?")),
        ("0001-0-0", QUESTION[1:], ("system, human", "recorded")),
        ("0001-0-1", QUESTION, ("0001-0-1-code-1", "0001-0-0-code-1", "not recorded")),
    ],
)
def test_another_question_fails_loudly(
    tmp_path: Path, place: str, question: list[Message], words: tuple[str, ...]
) -> None:
    recorded(tmp_path)
    with asking_for(scope(place)), pytest.raises(RunError) as caught:
        replaying(tmp_path).ask("code", question)
    assert caught.value.code == "replay-differs"
    assert all(word in caught.value.message for word in words), caught.value.message


def test_another_form_of_answer_is_another_question(tmp_path: Path) -> None:
    recorded(tmp_path)
    with asking_for(scope("0002")), pytest.raises(RunError, match="now as text"):
        replaying(tmp_path).ask("direct", QUESTION)


def test_a_recording_is_of_one_run(tmp_path: Path) -> None:
    recorded(tmp_path)
    chat = replaying(tmp_path)
    with asking_for(scope()):
        chat.ask("code", QUESTION)
    with asking_for(scope(run="another")), pytest.raises(RunError, match="one run"):
        chat.ask("code", QUESTION)


def test_a_recording_is_not_written_over_but_a_resumed_run_goes_on_with_it(tmp_path: Path) -> None:
    recorded(tmp_path)
    with pytest.raises(SettingsError, match="already holds a recording"):
        Recorder(tmp_path, 7)
    Recorder(tmp_path, 7, resumed=True)


def test_a_run_that_fails_before_its_first_answer_leaves_no_recording(tmp_path: Path) -> None:
    with scripted(failure(401)) as server:
        chat = RoleChat({"code": choice_of(server.url)}, recorder=Recorder(tmp_path, 7))
        with asking_for(scope()), pytest.raises(ModelError):
            chat.ask("code", QUESTION)
    assert not any(tmp_path.iterdir())
    recorded(tmp_path)


def test_a_second_run_is_refused_before_its_answer_is_paid_for(tmp_path: Path) -> None:
    with scripted(*[Reply(200, completion("yes"))] * 2) as server:
        chat = RoleChat({"code": choice_of(server.url)}, recorder=Recorder(tmp_path, 7))
        with asking_for(scope()):
            chat.ask("code", QUESTION)
        with asking_for(scope(run="another")), pytest.raises(RunError, match="one run"):
            chat.ask("code", QUESTION)
        assert len(server.requests) == 1


def test_a_recording_that_another_began_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    late = Recorder(tmp_path, 7)
    recorded(tmp_path)
    before = sorted((path.name, path.read_text()) for path in tmp_path.rglob("*.json"))
    answer = Answer(text="no", prompt_tokens=1, completion_tokens=1)
    with pytest.raises(SettingsError, match="already holds a recording"):
        late.keep(scope("0009"), "code", "scripted", QUESTION, None, answer)
    assert sorted((path.name, path.read_text()) for path in tmp_path.rglob("*.json")) == before


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError):
        Recorder(tmp_path / "file" / "recording", 7)


@pytest.mark.parametrize("key", ["any", "x", "EMPTY"])
def test_the_placeholder_of_a_server_without_keys_is_no_secret(tmp_path: Path, key: str) -> None:
    said = "for (int x = 0; any(x); ++x) // EMPTY"
    with scripted(Reply(200, completion(said))) as server:
        choice = choice_of(server.url).model_copy(update={"api_key": SecretStr(key)})
        chat = RoleChat({"code": choice}, recorder=Recorder(tmp_path, 7, [key]))
        with asking_for(scope()):
            assert chat.ask("code", [("human", said)]).text == said
    [path] = (tmp_path / "exchanges").iterdir()
    assert path.read_text().count(said) == 2


def test_a_key_that_an_endpoint_repeats_is_struck_out_of_all_that_it_says(tmp_path: Path) -> None:
    refused = completion(f"KEY = '{KEY}'")
    choices = refused["choices"]
    assert isinstance(choices, list)
    choices[0]["message"]["refusal"] = f"{KEY} may not"
    told: list[str] = []
    with scripted(failure(500, f"{'busy ' * 57}{KEY}"), Reply(200, refused)) as server:
        rules = RetryRules(attempts=2, base_seconds=0.01, max_seconds=0.02)
        chat = RoleChat({"code": choice_of(server.url)}, rules, told.append, Recorder(tmp_path, 7, [KEY]))
        with asking_for(scope()):
            answer = chat.ask("code", QUESTION)
    assert (answer.text, answer.refused) == ("KEY = '***'", "*** may not")
    kept = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert not any("sk-never" in text for text in (kept, *told))


def test_a_recording_of_another_version_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path)
    head = tmp_path / "recording.json"
    head.write_text(json.dumps({**json.loads(head.read_text()), "version": "0.0.1"}))
    with pytest.raises(SettingsError, match=r"0\.0\.1"):
        Replayer(tmp_path)
    head.write_text("{}")
    with pytest.raises(SettingsError, match="not the head of a recording"):
        Replayer(tmp_path)
    head.unlink()
    with pytest.raises(SettingsError, match="is no recording"):
        Replayer(tmp_path)


def test_code_must_agree_to_the_digit_and_measurements_need_not() -> None:
    code = "```python\nTILE = {}\n```\n"
    assert comparable("took 1.25 ms, 3e-4 off at [3, 17] in /tmp/a/b.cpp") == comparable(
        "took 0.8 ms, -1 off at [12, 4] in /var/x/y/c.cpp"
    )
    assert comparable(code.format(16)) != comparable(code.format(32))
    assert comparable("float4 loads") != comparable("float2 loads")
    assert first_difference([("human", code.format(16))], [("human", code.format(32))])


@pytest.mark.parametrize("other", ["float32 [8, 512]", "float16 [8, 1024]", "bool [8, 1024]"])
def test_types_and_shapes_of_tensors_must_agree_outside_of_code_too(other: str) -> None:
    """A task without source is told to the model by its tensors alone."""
    words = "inputs of forward, in order: input x: {}\nIt takes 1.25 ms."
    said = words.format("float32 [8, 1024]")
    assert first_difference([("human", said)], [("human", words.format(other))])
    assert not first_difference([("human", said)], [("human", said.replace("1.25", "0.5"))])


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_texts_can_be_compared(one: str, other: str) -> None:
    assert first_difference([("human", one)], [("human", one)]) == ""
    difference = first_difference([("human", one)], [("human", other)])
    assert bool(difference) == (comparable(one).splitlines() != comparable(other).splitlines())
