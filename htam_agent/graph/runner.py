"""Drive the graph from its start, or from the last checkpoint, to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl

from htam_agent.errors import RunError
from htam_agent.graph.build import build_graph
from htam_agent.graph.checkpoints import open_checkpoints
from htam_agent.graph.state import InputState, State
from htam_agent.runs.records import Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from langchain_core.runnables import RunnableConfig

    from htam_agent.graph.context import Context
    from htam_agent.graph.events import Event
    from htam_agent.runs.folder import RunFolder
    from htam_agent.task import Task

NODES_PER_STEP = 40
"""More than a step can take with 16 repairs; only a guard, the graph's own counters stop it."""


class Interrupted(Exception):
    """The run was asked to stop and did so at a node boundary; it can be resumed."""


def run_graph(
    context: Context,
    task: Task,
    folder: RunFolder,
    listen: Callable[[Event], None],
    control: RunControl | None = None,
) -> Result:
    """Run the graph with checkpoints in `folder`; a folder with checkpoints is resumed where it stopped.

    `control.request_drain()` from a signal handler stops the run before the next node (Interrupted).
    Raises the errors of the nodes, RunError for a corrupt checkpoint.
    """
    with open_checkpoints(folder.path("checkpoints.sqlite")) as saver:
        graph = build_graph().compile(checkpointer=saver)
        config: RunnableConfig = {
            "configurable": {"thread_id": folder.root.name},
            "recursion_limit": NODES_PER_STEP * (context.options.steps + 2),
        }
        begun = saver.get_tuple(config) is not None
        given = None if begun else InputState(task=task)
        result: Result | None = None
        try:
            for mode, chunk in graph.stream(
                given,
                config,
                context=context,
                stream_mode=["custom", "values"],
                durability="sync",
                control=control or RunControl(),
            ):
                if mode == "custom":
                    listen(cast("Event", chunk))
                else:
                    result = cast("State", chunk).get("result", result)
        except GraphDrained as error:
            raise Interrupted(str(folder.root)) from error
    if result is None:
        raise RunError(
            f"The run in {str(folder.root)!r} ended without a result.", "Start it again in a new folder.", "run-corrupt"
        )
    return result
