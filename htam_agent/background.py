"""The one event loop beside synchronous code: whatever is asynchronous (MCP servers, tools that are coroutines) runs
there, so that nodes stay synchronous under invoke, ainvoke, notebooks and servers alike."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []
_at_end: list[Callable[[], Awaitable[None]]] = []
END_SECONDS = 10.0
"""Most time that everything in the background gets to end with the process."""


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop, started in a daemon thread on first use."""
    with _lock:
        if not _loops:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="htam-background", daemon=True).start()
            _loops.append(loop)
            atexit.register(_end)
        return _loops[0]


def run_in_background(work: Awaitable[T], seconds: float | None = None) -> T:
    """The result of `work`, awaited in the background while this thread waits.

    Raises what it raises, and TimeoutError after `seconds`; then, and when this thread is interrupted, `work` is
    cancelled. Raises RuntimeError when called from the background loop itself, which would wait for itself for ever.
    """
    if _running() is background_loop():
        raise RuntimeError("run_in_background was called in the background: await the work instead")
    future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(_awaited(work), background_loop())
    try:
        return future.result(seconds)
    except BaseException:
        future.cancel()
        raise


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def at_end(work: Callable[[], Awaitable[None]]) -> None:
    """Have `work` awaited in the background when the process ends."""
    with _lock:
        _at_end.append(work)


def _end() -> None:
    async def everything() -> None:
        await asyncio.gather(*(work() for work in _at_end), return_exceptions=True)

    try:
        run_in_background(everything(), END_SECONDS)
    except TimeoutError:
        return
