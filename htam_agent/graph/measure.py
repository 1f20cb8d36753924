"""What every node has around it: the clock of the run, and the end of its processes when the node fails."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Protocol

from langgraph.runtime import Runtime

from htam_agent.graph.context import Context, context_of
from htam_agent.graph.state import State

if TYPE_CHECKING:
    from htam_agent.graph.state import Candidate


class Node(Protocol):
    """A node as the graph calls it."""

    def __call__(self, state: State, runtime: Runtime[Context]) -> State: ...


def measured(node: Node) -> Node:
    """The node, adding the time that it took to the state's `seconds`; when it raises, the run's processes end (a retry
    or a resume opens them again).

    Only time inside nodes counts, so a pause between a kill and the resume does not. Work that a killed process did and
    left on disk counts with the time that it says it took.
    """

    @functools.wraps(node)
    def work(state: State, runtime: Runtime[Context]) -> State:
        started = time.monotonic()
        if "run" in state:
            with context_of(runtime).ended_on_failure(state["run"]):
                answer = node(state, runtime)
        else:
            answer = node(state, runtime)
        took = max(time.monotonic() - started, _tool_seconds(state, answer))
        answer["seconds"] = state.get("seconds", 0.0) + took
        return answer

    return work


def _tool_seconds(state: State, answer: State) -> float:
    """What the node's answer adds to the candidates' tool time."""
    before = state.get("candidates", {})
    return sum(_added(before.get(key), candidate) for key, candidate in answer.get("candidates", {}).items())


def _added(before: Candidate | None, after: Candidate) -> float:
    same = before is not None and (before.step, before.opening) == (after.step, after.opening)
    return after.tool_seconds - (before.tool_seconds if before is not None and same else 0.0)
