"""The agent as one node of a larger graph."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from langgraph.errors import GraphRecursionError

from htam_agent.errors import UsageError
from htam_agent.graph.build import build_graph
from htam_agent.graph.runner import endless, recursion_limit
from htam_agent.graph.state import InputState, OutputState, State
from htam_agent.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from langgraph.graph.state import CompiledStateGraph

    from htam_agent.graph.context import Context
    from htam_agent.runs.records import Result

    InnerGraph = CompiledStateGraph[State, Context, InputState, OutputState]


def agent_node(context: Context | None) -> Callable[[Mapping[str, Task | str]], dict[str, Result]]:
    """See api.as_node. The inner graph is invoked with its own context: a parent's context is another type."""
    graph = build_graph().compile()

    def optimize_task(state: Mapping[str, Task | str]) -> dict[str, Result]:
        given = state["task"]
        task = Task.parse(given) if isinstance(given, str) else given
        if context is not None:
            return {"result": _invoked(graph, context, task)}
        with closing(default_context()) as own:
            return {"result": _invoked(graph, own, task)}

    return optimize_task


def _invoked(graph: InnerGraph, context: Context, task: Task) -> Result:
    """One run of the inner graph. However it ends, its processes end with it."""
    own, limit = context.for_one_run(), recursion_limit(context)
    try:
        end = graph.invoke(InputState(task=task), {"recursion_limit": limit}, context=own)
        if "result" not in end:  # inside a parent with a checkpointer the pause goes up to it, past this line
            raise UsageError(
                "The run waits for an answer, and its graph has no checkpointer with which it could go on.",
                "Compile the larger graph with a checkpointer, or do without `approve` and an external evaluator.",
                "no-checkpointer",
            )
        result: Result = end["result"]
        return result
    except GraphRecursionError as error:
        raise endless(f"The run of {task.name}", limit) from error
    finally:
        own.close_sessions()


def default_context() -> Context:
    """A context from the settings of this process (htam.toml, .env, environment)."""
    from htam_agent.services import make_context, run_options
    from htam_agent.settings import Settings

    settings = Settings.load({})
    return make_context(settings, run_options(settings))
