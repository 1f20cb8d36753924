"""The agent as one node of a larger graph."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from htam_agent.graph.build import build_graph
from htam_agent.graph.state import InputState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from htam_agent.graph.context import Context
    from htam_agent.runs.records import Result
    from htam_agent.task import Task


def agent_node(context: Context | None) -> Callable[[Mapping[str, Task]], dict[str, Result]]:
    """See api.as_node. The inner graph is invoked with its own context: a parent's context is another type."""
    graph = build_graph().compile()

    def optimize_task(state: Mapping[str, Task]) -> dict[str, Result]:
        given = InputState(task=state["task"])
        if context is not None:
            return {"result": graph.invoke(given, context=context)["result"]}
        with closing(default_context()) as own:
            return {"result": graph.invoke(given, context=own)["result"]}

    return optimize_task


def default_context() -> Context:
    """A context from the settings of this process (htam.toml, .env, environment)."""
    from htam_agent.services import make_context, run_options
    from htam_agent.settings import Settings

    settings = Settings.load({})
    return make_context(settings, run_options(settings))
