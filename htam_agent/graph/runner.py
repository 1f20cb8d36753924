"""Drive the graph from its start, or from the last checkpoint, to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from langgraph.errors import GraphDrained, GraphRecursionError
from langgraph.runtime import RunControl

from htam_agent.errors import HtamError, InfrastructureError, RunError
from htam_agent.graph.build import build_graph
from htam_agent.graph.checkpoints import open_checkpoints
from htam_agent.graph.state import InputState, State
from htam_agent.runs.records import Result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from langchain_core.runnables import RunnableConfig

    from htam_agent.graph.context import Context
    from htam_agent.graph.events import Event
    from htam_agent.runs.folder import RunFolder
    from htam_agent.task import Task


def recursion_limit(context: Context) -> int:
    """More nodes than a run of these options can take: only a guard, the graph's own counters end every loop.

    A step passes at most five nodes for each attempt of each candidate (generate, compile, repair, run, repair) and six
    for the rest. A step is opened again at most once for each strategy of the memory, in four nodes. Three nodes more
    begin and end a run.
    """
    options = context.options
    attempts = options.candidates * (1 + options.repairs)
    return options.steps * (6 + 5 * attempts + 4 * (1 + len(context.memory.strategies))) + 3


class Interrupted(HtamError):
    """The run was asked to stop and did so at a node boundary; it can be resumed."""

    code = "interrupted"
    exit_code = 130

    def __init__(self, run: Path) -> None:
        super().__init__("The run was interrupted before its end.", f"Go on with `htam resume {run}`.")


def endless(run: str, limit: int) -> InfrastructureError:
    """The sentence for a run whose graph does not come to its end."""
    return InfrastructureError(
        f"{run} passed {limit} nodes without coming to an end, more than its steps, candidates and repairs can take.",
        "Please report it with the run's folder. What was learned is in the memory; start a new run.",
        "graph-endless",
    )


def run_graph(
    context: Context,
    task: Task,
    folder: RunFolder,
    listen: Callable[[Event], None],
    control: RunControl | None = None,
) -> Result:
    """Run the graph with checkpoints in `folder`; a folder with checkpoints is resumed where it stopped.

    `control.request_drain()` from a signal handler stops the run before the next node (Interrupted).
    Raises the errors of the nodes, RunError for a corrupt checkpoint, InfrastructureError for a run without an end.
    """
    with open_checkpoints(folder.path("checkpoints.sqlite")) as saver:
        graph = build_graph().compile(checkpointer=saver)
        config: RunnableConfig = {
            "configurable": {"thread_id": folder.root.name},
            "recursion_limit": recursion_limit(context),
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
            raise Interrupted(folder.root) from error
        except GraphRecursionError as error:
            raise endless(str(folder.root), recursion_limit(context)) from error
    if result is None:
        raise RunError(
            f"The run in {str(folder.root)!r} ended without a result.", "Start it again in a new folder.", "run-corrupt"
        )
    return result
