"""Another compiler, judge and profiler in the real evaluator: used, confined, said in the result, never mixed up."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from htam_agent.backends.cpp import CppBackend
from htam_agent.coding.assembly import assemble
from htam_agent.coding.parsing import parse_answer
from htam_agent.errors import InfrastructureError
from htam_agent.runs.records import RunOptions
from htam_agent.services import bench_factory
from htam_agent.settings import Settings
from htam_agent.swapping.bench import SwappedBench
from htam_agent.swapping.chosen import choose
from htam_agent.swapping.compilers import CompiledBy
from htam_agent.task import Task
from htam_agent.verdict import Check
from tests.support.command import ROOT
from tests.swapping.test_mcp_tools import PERF
from tests.swapping.third_party import install, marked

TASK = Task.parse(str(ROOT / "tests" / "tasks" / "row_softmax.py"))
OPTIONS = RunOptions(backend="cpp", protocol="kernelbench")
TOOLS = {"compile": "fastcc", "profile": {"mcp": "perf/profile"}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(install(tmp_path_factory.mktemp("site")))
        yield


@pytest.fixture(scope="module")
def bench(site: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwappedBench]:
    settings = Settings.load({"tools": TOOLS, "mcp": {"servers": {"perf": PERF}}})
    made = bench_factory(choose(settings, "cpp"))(TASK, OPTIONS, tmp_path_factory.mktemp("bench"))
    assert isinstance(made, SwappedBench)
    with made:
        yield made


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A right answer to the task, recorded; no earlier run of the tests has built it."""
    said = json.loads((ROOT / "tests/recordings/row_softmax/say/0005.json").read_text())
    path = tmp_path / "kernel.py"
    text = assemble(parse_answer(said["content"], "cpp").source, "cpp")
    path.write_text(text.replace("#include", f"// {tmp_path}\n#include", 1))
    return path


def test_the_build_of_a_third_party_is_what_runs(bench: SwappedBench, kernel: Path) -> None:
    built = bench.compile(kernel)
    assert built.ok, built.log
    assert not built.cached
    assert marked(built.binary)
    again = bench.compile(kernel)
    assert again.cached
    assert marked(again.binary), "the cache knows whose build it is"
    result = bench.run(again, timing=False)
    assert result.verdict == "correct", result.reason
    note = "built by fastcc; the file alone builds with g++"
    assert Check(name="compiler", passed=True, detail=note) in result.checks
    profile = bench.profile(again, result)
    assert profile.bottleneck == "latency"
    assert profile.diagnosis == "cpp: correct at candidate.py", "an MCP server said this"


def test_each_compiler_and_version_has_builds_of_its_own(site: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(choice: str, version: str = "1.2") -> str:
        compiler = choose(Settings.load({"tools": {"compile": choice}})).swapped.compiler
        assert compiler is not None
        monkeypatch.setattr(compiler.implementation, "version", version, raising=True)
        return CompiledBy(CppBackend(), compiler).build_key("source")

    keys = [CppBackend().build_key("source"), key("fastcc"), key("fastcc", "1.3"), key("fastcc:Broken")]
    assert len(set(keys)) == len(keys)


def test_a_source_that_does_not_build_is_still_a_value(bench: SwappedBench, kernel: Path) -> None:
    kernel.write_text(re.sub(r'extern "C"', 'extern "D"', kernel.read_text()))
    built = bench.compile(kernel)
    assert not built.ok
    assert "error" in built.log


def test_a_compiler_and_a_judge_of_a_server(bench: SwappedBench, kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = {"compile": "mcp:perf/build", "run": "mcp:perf/judge"}
    chosen = choose(Settings.load({"tools": tools, "mcp": {"servers": {"perf": PERF}}})).swapped
    monkeypatch.setattr(bench._opened().backend, "compiler", chosen.compiler)
    monkeypatch.setattr(bench, "swapped", chosen)
    built = bench.compile(kernel)
    assert built.ok, built.log
    assert marked(built.binary)
    assert not bench.compile(kernel).cached, "what a server compiles with is not known"
    result = bench.run(built, timing=False)
    assert (result.verdict, result.reason) == ("wrong", "kernelbench: built by cpp")
    assert [check.name for check in result.checks] == ["compiler", "judge"]


def test_a_third_partys_compiler_is_behind_the_walls_too(
    bench: SwappedBench, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = choose(Settings.load({"tools": {"compile": "fastcc:Curious"}})).swapped.compiler
    monkeypatch.setattr(bench._opened().backend, "compiler", compiler)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        kernel.write_text(kernel.read_text().replace("#include", f"// port {port} .\n#include", 1))
        built = bench.compile(kernel)
    assert (built.ok, built.reason, built.log) == (False, "curious", "nothing")
    assert not bench.compile(kernel).cached, "without a version nothing is kept"


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("fastcc:Broken", ["'fastcc:Broken'", "OSError: the licence server is gone"]),
        ("fastcc:Liar", ["there is no file at request.output"]),
        ("fastcc:WrongAnswer", ["answered str instead of CompileResult"]),
    ],
)
def test_a_compiler_that_breaks_is_no_fault_of_the_kernel(
    bench: SwappedBench, kernel: Path, monkeypatch: pytest.MonkeyPatch, choice: str, words: list[str]
) -> None:
    compiler = choose(Settings.load({"tools": {"compile": choice}})).swapped.compiler
    monkeypatch.setattr(bench._opened().backend, "compiler", compiler)
    with pytest.raises(InfrastructureError) as caught:
        bench.compile(kernel)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_judge_of_another_package_decides_and_is_named(bench: SwappedBench, kernel: Path) -> None:
    built = bench.compile(kernel)
    chosen = choose(Settings.load({"tools": {"run": "fastcc:Judge", "profile": "fastprof"}})).swapped
    before, bench.swapped = bench.swapped, chosen
    try:
        result = bench.run(built, timing=False)
        profile = bench.profile(built, result)
    finally:
        bench.swapped = before
    assert (result.verdict, result.reason) == ("correct", "candidate.py")
    assert [check.detail for check in result.checks] == ["judged by fastcc:Judge, not by the built-in evaluator"]
    assert profile.diagnosis == "fastcc saw softmax."
