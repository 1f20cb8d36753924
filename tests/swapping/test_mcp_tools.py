"""Tools of a real MCP server process: what fits, what is refused at the start, what fails in the middle."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from htam_agent.errors import InfrastructureError, SettingsError
from htam_agent.settings import Settings
from htam_agent.swapping.chosen import choose
from htam_agent.swapping.mcp_servers import connect
from htam_agent.swapping.mcp_tools import McpTool
from htam_agent.verdict import ProfileResult
from tests.swapping.third_party import install

SERVER = str(Path(__file__).with_name("perf_server.py"))
PERF: dict[str, object] = {"command": sys.executable, "args": [SERVER]}
OFFERED = {"kernel": "some/kernel.py", "run": {"verdict": "correct"}, "backend": "cpp", "unasked": 1}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(tool: str = "profile", seam: str = "profile", **server: object) -> Settings:
    return Settings.load({"tools": {seam: {"mcp": f"perf/{tool}"}}, "mcp": {"servers": {"perf": server or PERF}}})


def tool(name: str) -> McpTool[ProfileResult]:
    return McpTool(connect("perf", settings().mcp.servers), name, frozenset(OFFERED), ProfileResult)


def test_a_tool_that_fits_is_given_what_it_names() -> None:
    answer = tool("profile")(OFFERED)
    assert answer.bottleneck == "latency"
    assert answer.diagnosis == "cpp: correct at kernel.py"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("prophile", ["has no tool 'prophile'", "profile"]),
        ("words", ["declares no structured answer"]),
        ("number", ["answer's 'bottleneck' is integer and not string"]),
        ("greedy", ["requires 'password'"]),
        ("embed", ["requires 'texts'", "has no 'bottleneck'"]),
    ],
)
def test_a_tool_that_does_not_fit_is_refused_at_the_start(name: str, words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        choose(settings(name))
    said = str(caught.value)
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fail", ["'fail' of the MCP server 'perf' failed"]),
        ("nonsense", ["answered no ProfileResult", "bottleneck"]),
    ],
)
def test_a_tool_that_fails_in_the_middle_is_broken_infrastructure(name: str, words: list[str]) -> None:
    with pytest.raises(InfrastructureError) as caught:
        tool(name)(OFFERED)
    said = str(caught.value)
    assert all(word in said for word in words), said
    assert "earlier results are kept" in said


def test_a_server_that_died_stays_dead_for_the_run_and_starts_anew_for_the_next() -> None:
    dead = tool("die")
    for _ in range(2):
        with pytest.raises(InfrastructureError) as caught:
            dead(OFFERED)
        assert all(word in str(caught.value) for word in (sys.executable, "out of licences", "are kept"))
    assert tool("profile")(OFFERED).bottleneck == "latency"


def test_a_call_that_takes_too_long_ends() -> None:
    servers = settings(**PERF, call_seconds=0.5).mcp.servers
    slow = McpTool(connect("slow", {"slow": servers["perf"]}), "sleep", frozenset(OFFERED), ProfileResult)
    begun = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"did not answer 'sleep' within 0.5 s"):
        slow(OFFERED)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"command": "no-such-program"}, ["No such file", "mcp.servers.perf"]),
        ({"command": sys.executable, "args": ["-c", "raise SystemExit('boom')"]}, ["it wrote: boom"]),
        ({"command": "sleep", "args": ["30"], "start_seconds": 0.5}, ["did not answer within 0.5 s"]),
        ({"command": "cat"}, ["does not start"]),
        ({"url": "http://127.0.0.1:9/mcp"}, ["http://127.0.0.1:9/mcp", "does not start"]),
    ],
)
def test_a_server_that_does_not_start_is_one_sentence(server: dict[str, object], words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        choose(settings(**server))
    said = str(caught.value)
    assert all(word in said for word in words), said


def test_no_key_of_a_server_stands_in_an_error() -> None:
    """Neither its own words nor the client's repeat what only the server should know."""
    talks = "import os, sys; sys.exit(' '.join((*sys.argv, os.environ['SECRET'], 'boom')))"
    args = ["-c", talks, "--api-key", "key-in-args", "--token=token-in-args", "more"]
    command = {"command": sys.executable, "args": args, "env": {"SECRET": "key-in-env"}}
    address = {"url": "http://me:key-in-url@127.0.0.1:9/mcp?key=key-in-query", "headers": {"A": "Bearer key-in-header"}}
    for server, left in ((command, "boom"), (address, "http://127.0.0.1:9/mcp")):
        with pytest.raises(SettingsError) as caught:
            choose(settings(**server))
        said = str(caught.value)
        assert left in said
        assert "-in-" not in said, said
    hide = settings(**address).mcp.servers["perf"].hide
    assert hide("no http://me:key-in-url@x?key=key-in-query, Bearer key-in-header") == "no http://***@x?key=***, ***"


def test_an_embedder_and_a_coder_by_a_server(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    embedder = choose(settings("embed", "embedder")).embedder
    assert embedder is not None
    vectors = embedder.embed(["softmax", "relu"])
    assert (embedder.id, embedder.dimension, vectors.dtype) == ("mcp:perf/embed", 3, np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-6)
    assert embedder.embed([]).shape == (0, 3)
    coder = choose(settings("code", "coder")).coder
    assert coder is not None
    assert coder.name == "mcp:perf/code"


def test_coroutines_and_wrong_answers_of_a_package(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    from htam_agent.swapping.calling import answer_of
    from htam_agent.verdict import RunResult

    monkeypatch.syspath_prepend(install(folder / "site"))

    async def later(value: int) -> int:
        return value + 1

    assert answer_of(later, int, "It", 2) == 3
    with pytest.raises(InfrastructureError, match="It answered int instead of RunResult"):
        answer_of(later, RunResult, "It", 2)
    with pytest.raises(InfrastructureError, match="It failed: ZeroDivisionError"):
        answer_of(lambda: 1 / 0, int, "It")
