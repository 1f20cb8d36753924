"""The client of a model is opened with what the settings say, and what its endpoint says is fit to be shown."""

from __future__ import annotations

import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from htam_agent.coding.faults import fault_of
from htam_agent.coding.providers import open_client
from htam_agent.coding.roles import ModelChoice


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_the_key_goes_to_openai_unless_a_setting_says_otherwise(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9/v1")
    client = open_client(ModelChoice(model="gpt-5", api_key=SecretStr("sk-x")))
    assert isinstance(client, ChatOpenAI)
    assert str(client.root_client.base_url).rstrip("/") == "https://api.openai.com/v1"


def test_an_endpoints_words_are_one_plain_line_without_the_key() -> None:
    said = "\x1b]0;owned\x07bad\nsk-se\x1b[1mcret\x9b " + "x" * 500
    text = fault_of(ValueError(said), "sk-secret").text
    assert text.startswith("ValueError: bad ***")
    assert text.isprintable()
    assert len(text) < 320
