"""The three tools through `tool.invoke`, on an evaluator that builds with the real compiler."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from pydantic import ValidationError

from htam_agent.backends.base import DefaultLimits
from htam_agent.backends.cpp import CppBackend
from htam_agent.errors import SettingsError, TaskError
from htam_agent.tools import NAMES, make_tools, tool_by_name
from htam_agent.verdict import Check, CompileResult, ProfileResult, RunResult, Speedups, Times

GOOD = "CPP_SRC = 'extern \"C\" int answer() { return 1; }'\n"
WRONG = "CPP_SRC = 'extern \"C\" int answer() { return 2; }'\n"
BROKEN = "CPP_SRC = 'extern \"C\" int answer( { }'\n"


class BuildingBench:
    """An evaluator that really builds, and judges by a rule of this test: `return 2` is wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[str] = []

    def compile(self, source: Path) -> CompileResult:
        self.calls.append("compile")
        statement = ast.parse(source.read_text()).body[0]
        assert isinstance(statement, ast.Assign)
        return CppBackend().build(ast.literal_eval(statement.value), self.folder, DefaultLimits())

    def run(self, compiled: CompileResult, *, timing: bool = True) -> RunResult:
        self.calls.append("run")
        if "return 2" in Path(compiled.binary).with_suffix(".cpp").read_text():
            check = Check(name="equal", passed=False, detail="largest difference 1 at [0]")
            return RunResult(verdict="wrong", stage="verify", reason="outputs differ", checks=[check])
        times = Times(candidate=1.0, eager=2.0, best=2.0)
        return RunResult(verdict="correct", stage="time", speedup=Speedups(best=2.0), times_ms=times, faster=True)

    def profile(self, compiled: CompileResult, run: RunResult) -> ProfileResult:
        self.calls.append("profile")
        assert run.times_ms.candidate == 1.0
        return ProfileResult(bottleneck="memory", diagnosis="Bound by memory.", floor_ms=0.5, fraction_of_floor=0.5)


@pytest.fixture
def bench(tmp_path: Path) -> BuildingBench:
    return BuildingBench(tmp_path)


@pytest.fixture
def tools(bench: BuildingBench) -> dict[str, BaseTool]:
    return make_tools(bench)


def kernel(tmp_path: Path, text: str) -> str:
    path = tmp_path / "kernel.py"
    path.write_text(text)
    return str(path)


def call(tool: BaseTool, **arguments: str) -> ToolMessage:
    message = tool.invoke({"type": "tool_call", "id": "1", "name": tool.name, "args": arguments})
    assert isinstance(message, ToolMessage)
    return message


def test_the_names_are_those_of_the_graph(tools: dict[str, BaseTool]) -> None:
    assert tuple(tools) == NAMES == ("compile", "run", "profile")
    assert [tool.name for tool in tools.values()] == list(NAMES)


def test_a_good_kernel_passes_through_all_three(
    tools: dict[str, BaseTool], bench: BuildingBench, tmp_path: Path
) -> None:
    path = kernel(tmp_path, GOOD)
    built = call(tools["compile"], kernel=path)
    assert isinstance(built.artifact, CompileResult)
    assert built.artifact.ok
    assert "Built" in str(built.content)
    judged = call(tools["run"], kernel=path)
    assert isinstance(judged.artifact, RunResult)
    assert "2x the best baseline" in str(judged.content)
    profiled = call(tools["profile"], kernel=path)
    assert isinstance(profiled.artifact, ProfileResult)
    assert "50% of the floor" in str(profiled.content)
    assert bench.calls == ["compile", "run", "profile"]


def test_profile_alone_makes_what_is_missing(tools: dict[str, BaseTool], bench: BuildingBench, tmp_path: Path) -> None:
    profiled = call(tools["profile"], kernel=kernel(tmp_path, GOOD))
    assert profiled.artifact.bottleneck == "memory"
    assert bench.calls == ["compile", "run", "profile"]


def test_a_changed_file_is_built_again(tools: dict[str, BaseTool], bench: BuildingBench, tmp_path: Path) -> None:
    assert call(tools["run"], kernel=kernel(tmp_path, GOOD)).artifact.verdict == "correct"
    assert call(tools["run"], kernel=kernel(tmp_path, WRONG)).artifact.verdict == "wrong"
    assert bench.calls == ["compile", "run"] * 2


def test_failures_are_values_with_the_evidence_in_words(tools: dict[str, BaseTool], tmp_path: Path) -> None:
    path = kernel(tmp_path, BROKEN)
    built = call(tools["compile"], kernel=path)
    assert not built.artifact.ok
    assert "error" in str(built.content)
    judged = call(tools["run"], kernel=path)
    assert (judged.artifact.verdict, judged.artifact.stage) == ("failed", "compile")
    wrong = call(tools["run"], kernel=kernel(tmp_path, WRONG))
    assert "largest difference 1 at [0]" in str(wrong.content)
    profiled = call(tools["profile"], kernel=path)
    assert profiled.artifact.bottleneck == "unknown"
    assert "wrong" in profiled.artifact.diagnosis


def test_a_missing_file_and_unknown_arguments_are_refused(tools: dict[str, BaseTool], tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"nowhere\.py"):
        call(tools["compile"], kernel=str(tmp_path / "nowhere.py"))
    with pytest.raises(ValidationError):
        call(tools["compile"], kernel=kernel(tmp_path, GOOD), verdict="correct")


def test_tools_are_found_by_name() -> None:
    for name in NAMES:
        tool = tool_by_name(name)
        assert tool.name == name
        assert {"kernel", "task", "backend"} <= set(tool.args)
    with pytest.raises(SettingsError, match="no tool 'deploy'"):
        tool_by_name("deploy")
