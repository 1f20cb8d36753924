"""`htam mcp`: the agent as an MCP server. Its tools are optimize, evaluate and profile; each answers the typed object
that the command line prints, tells its progress, and stops when the client cancels.

Calls run one after the other, since a call measures: another one beside it would spoil its times.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from langgraph.runtime import RunControl
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field, ValidationError

from htam_agent.api import optimize as optimize_task
from htam_agent.errors import HtamError
from htam_agent.judging import Evaluation
from htam_agent.runs.records import Result
from htam_agent.serving_call import Answer, Arguments
from htam_agent.settings import Settings
from htam_agent.verdict import ProfileResult
from htam_agent.version import __version__

if TYPE_CHECKING:
    from htam_agent.graph.events import Event

T = TypeVar("T")
END_SECONDS = 20.0
"""How long a process gets to end its own before it is killed."""
BEAT_SECONDS = 5.0
"""How often a call that takes long says that it is under way."""
INSTRUCTIONS = (
    "Makes PyTorch operators faster with kernels that are proved equal on hidden inputs and measured. Paths are those "
    "of the server's machine. A call takes seconds (evaluate, profile) to many minutes (optimize)."
)

TaskArgument = Annotated[str, Field(description="The operator: FILE, FILE:Class or pkg.mod:factory.")]
KernelArgument = Annotated[str, Field(description="Path of the candidate's Python file, which defines ModelNew.")]
BackendArgument = Annotated[Literal["auto", "cuda", "cpp"], Field(description="Where kernels run.")]


def make_server() -> MCPServer[None]:
    """The server, with settings read anew for each call."""
    server: MCPServer[None] = MCPServer(
        "htam", title="htam_agent", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )
    one_at_a_time = asyncio.Lock()

    @server.tool(structured_output=True)
    async def optimize(
        task: TaskArgument,
        ctx: Context,
        backend: BackendArgument = "auto",
        coder: Annotated[Literal["template", "model"] | None, Field(description="Who writes kernels.")] = None,
        steps: Annotated[int | None, Field(ge=1, le=1000, description="Evolution steps at most.")] = None,
        out: Annotated[str | None, Field(description="The run's folder; a new one where it is not given.")] = None,
        seed: Annotated[int | None, Field(ge=0, description="Of selection.")] = None,
    ) -> Result:
        """Make an operator faster: the kernel, its proof and speedup, and the path. A call that is cancelled stops at
        the next node; `htam resume` goes on with the run."""
        reporter = Reporter(ctx)
        given: dict[str, object] = {"backend": backend, "coder": coder, "steps": steps, "out": out, "seed": seed}
        control = RunControl()

        def work() -> Result:
            settings = Settings.load({name: value for name, value in given.items() if value is not None}, given="call")
            return optimize_task(task, listen=reporter.from_run, control=control, settings=settings)

        return await _one(one_at_a_time, reporter, lambda: _in_thread(work, lambda: control.request_drain("cancelled")))

    @server.tool(structured_output=True)
    async def evaluate(
        task: TaskArgument, kernel: KernelArgument, ctx: Context, backend: BackendArgument = "auto"
    ) -> Evaluation:
        """Judge one kernel file against a task: correct on hidden inputs or not, and how fast, under each protocol."""
        arguments = Arguments(task=task, kernel=kernel, backend=backend)
        answer = await _one(one_at_a_time, Reporter(ctx), lambda: _in_process("evaluate", arguments))
        assert answer.evaluation is not None, "an answer to evaluate holds one"
        return answer.evaluation

    @server.tool(structured_output=True)
    async def profile(
        task: TaskArgument,
        kernel: KernelArgument,
        ctx: Context,
        backend: BackendArgument = "auto",
        counters: Annotated[bool, Field(description="Hardware counters too, where ncu may read them.")] = False,
    ) -> ProfileResult:
        """What bounds a correct kernel, against what this device was measured to reach."""
        arguments = Arguments(task=task, kernel=kernel, backend=backend, counters=counters)
        answer = await _one(one_at_a_time, Reporter(ctx), lambda: _in_process("profile", arguments))
        assert answer.profile is not None, "an answer to profile holds one"
        return answer.profile

    return server


class Reporter:
    """Progress notifications of one call, from the event loop or from the thread of a run."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._count = itertools.count(1)
        self._loop = asyncio.get_running_loop()

    async def say(self, text: str) -> None:
        """One notification; the number only grows, since nobody knows how much there is to do."""
        await self._ctx.report_progress(float(next(self._count)), None, text)

    def from_run(self, event: Event) -> None:
        """A progress event of the graph, told from its thread."""
        step = f"step {event['step']}: " if "step" in event else ""
        asyncio.run_coroutine_threadsafe(self.say(f"{step}{event['kind']}: {event['text']}"), self._loop)


_under_way: set[object] = set()
"""Kept from being collected while they end."""


async def _one(lock: asyncio.Lock, reporter: Reporter, work: Callable[[], Awaitable[T]]) -> T:
    """`work` when its turn has come, with a sign of life now and then. An error that has a sentence becomes a tool's
    error with that sentence. A call that is cancelled keeps its turn until its work has really ended."""
    task = asyncio.ensure_future(_in_turn(lock, work))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    begun = time.monotonic()
    try:
        while not (await asyncio.wait({task}, timeout=BEAT_SECONDS))[0]:
            waited = time.monotonic() - begun
            await reporter.say(f"under way for {waited:.0f} s")
        return await task
    except HtamError as error:
        raise ToolError(f"{error.code}: {error.message} {error.remedy}") from error
    except asyncio.CancelledError:
        task.cancel()
        raise


async def _in_turn(lock: asyncio.Lock, work: Callable[[], Awaitable[T]]) -> T:
    async with lock:
        return await work()


async def _in_thread(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """`work` in a thread; when the call is cancelled, `stop` ends what it waits for, and the thread is waited for."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.to_thread(stop)
        # The thread's own answer, or its complaint that its processes are gone, interests nobody now.
        await asyncio.wait({running})
        raise


async def _in_process(kind: str, arguments: Arguments) -> Answer:
    """An evaluation or a profile by a process, which ends with all its own when the call is cancelled. Raises ToolError
    with the sentence of a fault."""
    command = [sys.executable, "-P", "-m", "htam_agent.serving_call", kind, arguments.model_dump_json()]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        printed, _ = await process.communicate()
    except asyncio.CancelledError:
        await _ended(process)
        raise
    try:
        answer = Answer.model_validate_json(printed.splitlines()[-1])
    except (IndexError, ValidationError) as error:
        raise ToolError(f"The process of {kind} ended without an answer (exit code {process.returncode}).") from error
    if answer.error is not None:
        raise ToolError(f"{answer.error.code}: {answer.error.message} {answer.error.remedy}")
    return answer


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Ends a process as Ctrl-C does, so that it ends its own first; by force when it takes too long."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        await asyncio.wait_for(process.wait(), END_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
