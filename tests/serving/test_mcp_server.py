"""`htam mcp` as a process, asked by a real MCP client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from htam_agent.judging import Evaluation
from htam_agent.runs.records import Result, RunManifest
from htam_agent.swapping.choices import McpServer
from htam_agent.swapping.mcp_servers import connect
from htam_agent.swapping.mcp_tools import McpProfiler, McpRunner
from tests.evaluation.samples import FORWARD, candidate
from tests.evaluation.samples import TASK as EVALUATED
from tests.support.command import ROOT, clean_environment

if TYPE_CHECKING:
    from mcp import Client

TASK = str(ROOT / "tests" / "tasks" / "pointwise_chain.py")
SERVE = ["-m", "htam_agent", "mcp"]


def environment(folder: Path) -> dict[str, str]:
    """A stranger's, but for the cache: what this machine reaches was measured before."""
    kept = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in os.environ}
    found = clean_environment(folder)
    found.pop("XDG_CACHE_HOME")
    return {**found, **kept}


class Listener:
    """What came besides answers: progress, and lines that are no messages."""

    def __init__(self) -> None:
        self.progress: list[tuple[float, str]] = []
        self.faults: list[Exception] = []
        self.prepares = asyncio.Event()

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, message or ""))
        if message and message.startswith("prepare"):
            self.prepares.set()

    async def on_message(self, message: object) -> None:
        if isinstance(message, Exception):
            self.faults.append(message)


@contextlib.asynccontextmanager
async def served(folder: Path, listener: Listener) -> AsyncIterator[Client]:
    # Not at the top: a GPU machine collects these tests without the extra.
    from mcp import Client, StdioServerParameters

    parameters = StdioServerParameters(command=sys.executable, args=SERVE, env=environment(folder), cwd=str(folder))
    async with Client(parameters, message_handler=listener.on_message) as client:
        yield client


def noisy_task(folder: Path) -> str:
    """A task whose file prints when it is loaded."""
    path = folder / "noisy.py"
    path.write_text("import os\nprint('noise')\nos.write(1, b'more noise')\n" + Path(TASK).read_text())
    return str(path)


def test_tools_answer_typed_objects_and_errors(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("CPP_SRC = 'int f( {'\n\n\nclass ModelNew:\n    pass\n")

    async def conversation() -> None:
        listener = Listener()
        async with served(tmp_path, listener) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"optimize", "evaluate", "profile"}
            assert all(tool.description and tool.output_schema for tool in tools.values())

            arguments = {"task": noisy_task(tmp_path), "kernel": str(broken), "backend": "cpp"}
            answer = await client.call_tool("evaluate", arguments, progress_callback=listener.on_progress)
            assert not answer.is_error, answer.content
            jsonschema.validate(answer.structured_content, tools["evaluate"].output_schema)
            evaluation = Evaluation.model_validate(answer.structured_content)
            assert (evaluation.verdict, evaluation.stage) == ("failed", "policy")

            refused = await client.call_tool("optimize", {"task": "nowhere.py", "backend": "cpp"})
            assert refused.is_error
            assert "task-missing: The task file" in str(refused.content) or "nowhere.py" in str(refused.content)
            wrong = await client.call_tool("optimize", {"task": TASK, "steps": 0})
            assert wrong.is_error
            assert listener.faults == []

    asyncio.run(conversation())


def test_its_tools_fit_the_seams_of_another_htam(tmp_path: Path) -> None:
    server = McpServer.model_validate({"command": sys.executable, "args": SERVE, "cwd": str(tmp_path)})
    connection = connect("htam", {"htam": server})
    McpProfiler(connection, "profile")
    McpRunner(connection, "evaluate")


def test_over_http_on_the_loopback_address(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, *SERVE, "--http", str(port)],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        connection = connect("http", {"http": McpServer(url=f"http://127.0.0.1:{port}/mcp")})
        assert set(connection.tools) == {"optimize", "evaluate", "profile"}
        assert not connection.call("profile", {"task": "nowhere.py", "kernel": "x"}).structured_content
    finally:
        process.terminate()
        printed, _ = process.communicate(timeout=30)
    assert printed == b""


@pytest.mark.slow
def test_a_whole_run_with_its_progress(tmp_path: Path) -> None:
    async def conversation() -> Listener:
        listener = Listener()
        async with served(tmp_path, listener) as client:
            call = {"task": noisy_task(tmp_path), "backend": "cpp", "steps": 1, "seed": 1}
            answer = await client.call_tool("optimize", call, progress_callback=listener.on_progress)
        assert not answer.is_error, answer.content
        result = Result.model_validate(answer.structured_content)
        assert len(result.steps) == 1
        assert os.path.isdir(result.run)
        return listener

    listener = asyncio.run(conversation())
    numbers = [number for number, _ in listener.progress]
    assert numbers == sorted(set(numbers)), "progress only grows"
    said = " ".join(text for _, text in listener.progress)
    assert all(word in said for word in ("prepared", "step 1: direction", "judged"))
    assert listener.faults == []


@pytest.mark.slow
def test_a_call_that_is_cancelled_stops_its_run(tmp_path: Path) -> None:
    async def conversation() -> None:
        listener = Listener()
        async with served(tmp_path, listener) as client:
            run = tmp_path / "run"
            call = {"task": TASK, "backend": "cpp", "out": str(run), "seed": 1}
            under_way = asyncio.ensure_future(
                client.call_tool("optimize", call, progress_callback=listener.on_progress)
            )
            await asyncio.wait_for(listener.prepares.wait(), 100)
            under_way.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await under_way
            # The server is free again once the run has stopped at its next node: then it takes the next call.
            again = await client.call_tool("evaluate", {"task": "nowhere.py", "kernel": "x"})
            assert again.is_error
            assert RunManifest.model_validate_json((run / "run.json").read_text()).task.name == "pointwise_chain"
            assert not (run / "result.json").exists()
            assert listener.faults == []

    asyncio.run(conversation())


@pytest.mark.slow
def test_an_evaluation_that_is_cancelled_ends_its_processes(tmp_path: Path) -> None:
    from tests.graph.test_context import children

    task, kernel = tmp_path / "task.py", tmp_path / "kernel.py"
    task.write_text(EVALUATED)
    kernel.write_text(f"# {tmp_path}\n" + candidate("import time\ntime.sleep(1000)\n" + FORWARD))

    async def until(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(50):  # less than the limit of one call, which would end it too
            while not holds():
                await asyncio.sleep(0.1)

    async def conversation() -> None:
        async with served(tmp_path, Listener()) as client:
            server = children()
            call = {"task": str(task), "kernel": str(kernel), "backend": "cpp"}
            under_way = asyncio.ensure_future(client.call_tool("evaluate", call))
            await until(lambda: len(children() - server) >= 3)
            under_way.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await under_way
            await until(lambda: not children() - server)
            again = await client.call_tool("evaluate", {**call, "task": "nowhere.py"})
            assert again.is_error, "it takes the next call"

    asyncio.run(conversation())
