"""The three tools in the hands of an agent that is not ours: LangChain's, with a model that follows a script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool
from pydantic import Field

from htam_agent.tools import NAMES, make_tools, tool_by_name
from htam_agent.verdict import CompileResult, ProfileResult, RunResult
from tests.evaluation.samples import TASK, candidate
from tests.tools.test_tools import GOOD, BuildingBench

ARTIFACTS = {"compile": CompileResult, "run": RunResult, "profile": ProfileResult}


class ScriptedModel(GenericFakeChatModel):
    """A model that calls tools in a fixed order. `shown` are the descriptions that it was given."""

    shown: list[str] = Field(default_factory=list)

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> ScriptedModel:
        self.shown.extend(tool.description for tool in tools)
        return self


def calls(arguments: dict[str, object]) -> list[AIMessage]:
    """Each tool in turn, then a last word."""
    asked = [
        AIMessage(content="", tool_calls=[{"name": name, "args": arguments, "id": name, "type": "tool_call"}])
        for name in NAMES
    ]
    return [*asked, AIMessage(content="Done.")]


def driven(tools: Sequence[BaseTool], arguments: dict[str, object]) -> dict[str, ToolMessage]:
    """What the agent's tools answered, by tool."""
    model = ScriptedModel(messages=iter(calls(arguments)))
    end = create_agent(model, list(tools)).invoke({"messages": [("user", "Is this kernel any good?")]})
    assert len(model.shown) >= len(NAMES)
    messages: list[BaseMessage] = end["messages"]
    assert messages[-1].content == "Done."
    return {str(message.name): message for message in messages if isinstance(message, ToolMessage)}


def test_an_agent_builds_runs_and_profiles(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text(GOOD, encoding="utf-8")
    said = driven(list(make_tools(BuildingBench(tmp_path)).values()), {"kernel": str(kernel)})
    assert set(said) == set(NAMES)
    for name, kind in ARTIFACTS.items():
        assert said[name].status == "success"
        assert isinstance(said[name].artifact, kind)
        assert len(str(said[name].content)) < 2000, "a model reads short text; the artifact is for programs"
    assert "correct" in str(said["run"].content)


@pytest.mark.slow
def test_an_agent_judges_a_real_kernel(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK, encoding="utf-8")
    (tmp_path / "kernel.py").write_text(candidate(), encoding="utf-8")
    arguments: dict[str, object] = {
        "task": str(tmp_path / "task.py"), "kernel": str(tmp_path / "kernel.py"), "backend": "cpp"
    }  # fmt: skip
    said = driven([tool_by_name(name) for name in NAMES], arguments)
    assert isinstance(said["run"].artifact, RunResult)
    assert said["run"].artifact.verdict == "correct", json.dumps(str(said["run"].content))
