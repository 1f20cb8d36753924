"""Connections to the MCP servers of the settings: one for each server and process, kept until the process ends.

A server that dies is not started again within a run: what it was asked fails with a sentence, and a resumed run starts
it anew.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO, cast

from htam_agent.background import at_end, run_in_background
from htam_agent.errors import InfrastructureError, SettingsError
from htam_agent.plain_text import plain, plain_whole

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, Tool

    from htam_agent.swapping.choices import McpServer

INSTALL = "pip install 'htam_agent[mcp]'."
LOG_CHARACTERS = 600
END_SECONDS = 8.0
"""Longer than the SDK's own wait before it kills a server that does not end by itself."""


class Connection:
    """One server under way. Its client lives in one task of the background loop; calls come from any thread."""

    def __init__(self, name: str, server: McpServer) -> None:
        self.name = name
        self.server = server
        self.tools: dict[str, Tool] = {}
        self.alive = False
        # The server's standard error: shown when it fails, and nobody's business before.
        file = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - open as long as this
        self._log = cast("TextIO", file)
        self._client: Client | None = None
        self._ending: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the server, shake hands and list its tools. Raises SettingsError when that fails or takes too long."""
        try:
            run_in_background(self._start(), self.server.start_seconds)
        except TimeoutError as error:
            raise self._refused(f"it did not answer within {self.server.start_seconds:g} s") from error
        except Exception as error:
            raise self._refused(self._reason(error)) from error

    def call(self, tool: str, arguments: dict[str, object]) -> CallToolResult:
        """The tool's answer. Raises InfrastructureError when the server is gone, refuses, or takes too long."""
        what = f"The MCP server {self.name!r} ({self.server})"
        remedy = "Look at the server, then resume the run: earlier results are kept."
        try:
            return run_in_background(self._call(tool, arguments), self.server.call_seconds)
        except TimeoutError as error:
            message = f"{what} did not answer {tool!r} within {self.server.call_seconds:g} s{self._said()}."
            raise InfrastructureError(message, remedy, "mcp-timeout") from error
        except Exception as error:
            message = f"{what} failed at {tool!r}: {self._reason(error)}{self._said()}."
            raise InfrastructureError(message, remedy, "mcp-failed") from error

    async def _call(self, tool: str, arguments: dict[str, object]) -> CallToolResult:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if self._client is None or not self.alive:
            raise ConnectionError("the connection is closed")
        try:
            return await self._client.call_tool(tool, arguments)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self.alive = False
            raise

    def answers(self) -> bool:
        """Whether the server is still there; asked before an earlier connection is used for another run."""
        try:
            run_in_background(self._list_tools(), self.server.start_seconds)
        except Exception:  # noqa: BLE001 - whatever it is, the server is started anew
            self.alive = False
        return self.alive

    async def _list_tools(self) -> None:
        if self._client is None or not self.alive:
            raise ConnectionError("the connection is closed")
        self.tools = {tool.name: tool for tool in (await self._client.list_tools(cache_mode="bypass")).tools}

    async def _start(self) -> None:
        self._ending = asyncio.Event()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The client's cancel scopes must be entered and left in one task.
        self._task = asyncio.create_task(self._live(ready, self._ending))
        await ready

    async def _live(self, ready: asyncio.Future[None], ending: asyncio.Event) -> None:
        try:
            async with AsyncExitStack() as stack:
                self._client = await self._connected(stack)
                self.alive = True
                await self._list_tools()
                ready.set_result(None)
                await ending.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else ConnectionError(str(error)))
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.alive, self._client = False, None

    async def _connected(self, stack: AsyncExitStack) -> Client:
        from mcp import Client, StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        server = self.server
        if server.url is not None:
            import httpx2

            headers = {name: value.get_secret_value() for name, value in server.headers.items()}
            timeout = httpx2.Timeout(server.start_seconds, read=server.call_seconds)
            client = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
            return await stack.enter_async_context(Client(streamable_http_client(server.url, http_client=client)))
        parameters = StdioServerParameters(
            command=server.command or "",
            args=list(server.args),
            env={name: value.get_secret_value() for name, value in server.env.items()},
            cwd=server.cwd,
        )
        return await stack.enter_async_context(Client(stdio_client(parameters, errlog=self._log)))

    async def end(self) -> None:
        """End the connection, and with it a server that was started by command."""
        await self._ended()
        self._log.close()

    async def _ended(self) -> None:
        if self._task is None or self._ending is None:
            return
        self._ending.set()
        if not self.alive:
            self._task.cancel()
        await asyncio.wait([self._task], timeout=END_SECONDS)

    def _said(self) -> str:
        """The end of what the server wrote on its standard error, if anything."""
        self._log.seek(0)
        text = self.server.hide(plain_whole(self._log.read())).strip()
        return f"; it wrote: {text[-LOG_CHARACTERS:]}" if text else ""

    def _reason(self, error: BaseException) -> str:
        """The cause behind the groups that structured concurrency wraps round it."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = plain(self.server.hide(plain_whole(str(error)))).strip().rstrip(".")
        return text or type(error).__name__

    def _refused(self, reason: str) -> SettingsError:
        run_in_background(self._ended())
        said = self._said()
        self._log.close()
        return SettingsError(
            f"The MCP server {self.name!r} ({self.server}) does not start: {reason}{said}.",
            f"Correct mcp.servers.{self.name} in htam.toml, or start it by hand to see what it says.",
            "mcp-start",
        )


_connections: dict[str, Connection] = {}
_lock = threading.Lock()


def connect(name: str, servers: Mapping[str, McpServer]) -> Connection:
    """The connection to a server of the settings, started on first use and after its death.

    Raises SettingsError when no server has this name, the extra is not installed, or it does not start.
    """
    if name not in servers:
        known = f"The servers are {', '.join(servers)}." if servers else "There are none."
        raise SettingsError(
            f"There is no MCP server {name!r} in mcp.servers. {known}", "Add it to htam.toml.", "mcp-unknown"
        )
    if find_spec("mcp") is None:
        raise SettingsError("MCP servers need the package mcp, which is not installed.", INSTALL, "mcp-missing")
    with _lock:
        found = _connections.get(name)
        if found is not None and found.server == servers[name] and found.answers():
            return found
        # What the SDK logs of a server's faults is in the errors; without a handler it would go to standard error.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
        made = Connection(name, servers[name])
        made.start()
        if not _connections:
            at_end(_end_all)
        elif found is not None:
            run_in_background(found.end())
        _connections[name] = made
        return made


async def _end_all() -> None:
    await asyncio.gather(*(connection.end() for connection in _connections.values()), return_exceptions=True)
