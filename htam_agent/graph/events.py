"""Progress: small events on LangGraph's custom stream, for terminals, notebooks and parent graphs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NotRequired

from typing_extensions import TypedDict

from htam_agent.plain_text import plain_line

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

    from htam_agent.graph.context import Context


class Event(TypedDict):
    """One event. `kind`: resumed, prepare, prepared, direction, strategies, code, compiled, judged, profiled, repair,
    refused, learned, waiting (for another attempt at a model), spent, finishing. `text` is a short sentence; further
    keys by kind."""

    kind: str
    text: str
    time: float
    step: NotRequired[int]
    candidate: NotRequired[int]
    """Which of the step's candidates; they may be under way side by side."""
    attempt: NotRequired[int]
    why: NotRequired[str]
    best: NotRequired[float | None]
    floor: NotRequired[float | None]
    speedup: NotRequired[float | None]


def emit(
    runtime: Runtime[Context],
    kind: str,
    text: str,
    *,
    step: int | None = None,
    candidate: int | None = None,
    attempt: int | None = None,
    why: str | None = None,
    best: float | None = None,
    floor: float | None = None,
    speedup: float | None = None,
) -> None:
    """Send an event to whoever streams the graph; nobody listening costs nothing. Words of models and endpoints stand
    in it, so it is made fit for a terminal here, once for all who show it."""
    event = Event(kind=kind, text=plain_line(text), time=time.time())
    if step is not None:
        event["step"] = step
    if candidate is not None:
        event["candidate"] = candidate
    if attempt is not None:
        event["attempt"] = attempt
    if why is not None:
        event["why"] = plain_line(why)
    if best is not None or floor is not None:
        event["best"], event["floor"] = best, floor
    if speedup is not None:
        event["speedup"] = speedup
    runtime.stream_writer(event)
