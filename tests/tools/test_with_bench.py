"""The tools with the real evaluator: bound to one, and on their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from htam_agent.coding.assembly import assemble
from htam_agent.coding.parsing import parse_answer
from htam_agent.errors import TaskError
from htam_agent.evaluation.bench import Bench
from htam_agent.task import Task
from htam_agent.tools import make_tools, tool_by_name
from htam_agent.verdict import CompileResult, ProfileResult, RunResult

TESTS = Path(__file__).resolve().parents[1]
TASK = TESTS / "tasks" / "row_softmax.py"


def recorded(number: int, tmp_path: Path) -> str:
    """The candidate of a recorded answer: 1 does not build, 3 is wrong, 5 is right."""
    said = json.loads((TESTS / "recordings" / "row_softmax" / "say" / f"{number:04d}.json").read_text())
    path = tmp_path / f"kernel{number}.py"
    path.write_text(assemble(parse_answer(said["content"], "cpp").source, "cpp"))
    return str(path)


def call(tool: BaseTool, **arguments: str) -> ToolMessage:
    message = tool.invoke({"type": "tool_call", "id": "1", "name": tool.name, "args": arguments})
    assert isinstance(message, ToolMessage)
    return message


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BaseTool]]:
    with Bench(Task.parse(str(TASK)), backend="cpp", folder=tmp_path_factory.mktemp("bench"), seed=5) as bench:
        bench.open()
        yield make_tools(bench)


def test_a_right_kernel(bound: dict[str, BaseTool], tmp_path: Path) -> None:
    path = recorded(5, tmp_path)
    built = call(bound["compile"], kernel=path).artifact
    assert isinstance(built, CompileResult)
    assert built.ok, built.log
    judged = call(bound["run"], kernel=path).artifact
    assert isinstance(judged, RunResult)
    assert judged.verdict == "correct", judged.reason
    profiled = call(bound["profile"], kernel=path)
    assert isinstance(profiled.artifact, ProfileResult)
    assert profiled.artifact.floor_ms > 0
    assert profiled.artifact.fraction_of_floor > 0
    assert "floor" in str(profiled.content)


def test_a_wrong_kernel_and_one_that_does_not_build(bound: dict[str, BaseTool], tmp_path: Path) -> None:
    wrong = call(bound["run"], kernel=recorded(3, tmp_path))
    assert wrong.artifact.verdict == "wrong"
    assert "output" in str(wrong.content)
    broken = call(bound["compile"], kernel=recorded(1, tmp_path))
    assert not broken.artifact.ok
    assert "_mm256_exp_ps" in str(broken.content)


def test_a_tool_on_its_own(tmp_path: Path) -> None:
    message = call(tool_by_name("run"), task=str(TASK), kernel=recorded(5, tmp_path), backend="cpp")
    assert message.artifact.verdict == "correct", message.artifact.reason


def test_a_tool_on_its_own_refuses_what_is_no_task(tmp_path: Path) -> None:
    with pytest.raises(TaskError):
        call(tool_by_name("compile"), task="nowhere.py", kernel=recorded(5, tmp_path), backend="cpp")
