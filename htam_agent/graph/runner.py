"""Drive the graph from its start, or from the last checkpoint, to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never, cast

from langgraph.errors import GraphDrained, GraphRecursionError
from langgraph.runtime import RunControl
from langgraph.types import Command

from htam_agent.errors import HtamError, InfrastructureError, RunError
from htam_agent.graph.build import build_graph
from htam_agent.graph.checkpoints import CHECKPOINTS, open_checkpoints
from htam_agent.graph.state import InputState, State
from htam_agent.runs.records import Result
from htam_agent.runs.waiting import WAITING_FILE, Waiting

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


class Paused(HtamError):
    """The run waits for an answer (`waiting` says for which) and can be resumed with it."""

    code = "waiting"
    exit_code = 1

    def __init__(self, waiting: Waiting) -> None:
        refused = f" The last answer was refused: {waiting.problem}" if waiting.problem else ""
        super().__init__(f"The run {waiting.run!r} waits for {waiting.text}.{refused}", how_to_answer(waiting))
        self.waiting = waiting


def how_to_answer(waiting: Waiting) -> str:
    """The command that goes on with a run."""
    if waiting.kind in ("facts", "verdicts"):
        return (
            "Write the questions with `htam runs pending --batch FILE`, run `htam evaluate --batch FILE` on the other "
            f"machine, and go on with `htam resume {waiting.run} --verdicts RESULTS`."
        )
    names = "yes|no" + ("|DIRECTION" if waiting.kind == "direction" else "")
    return f"Go on with `htam resume {waiting.run} --approve {names}`."


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


def reopen_run(folder: RunFolder) -> None:
    """Lets a run with a result, which was stopped before its own end, take its next step when it is driven again. Its
    result is moved aside: from here on it has none.

    This may break off at any point and be called again: the state changes first, and only where it is at the stop; one
    that is in a step already stays there. Raises RunError where there is no checkpoint.
    """
    path = folder.path(CHECKPOINTS)
    if not path.exists():
        raise _without_checkpoint(folder)
    with open_checkpoints(path) as saver:
        graph = build_graph().compile(checkpointer=saver)
        config: RunnableConfig = {"configurable": {"thread_id": folder.root.name}}
        if saver.get_tuple(config) is None:
            raise _without_checkpoint(folder)
        found = graph.get_state(config)
        if found.values.get("halt") is not None and found.next in ((), ("finish",)):
            graph.update_state(config, {"stop": "", "halt": None}, as_node="learn")
    folder.move("result.json", "stopped.json")


def is_ending(folder: RunFolder) -> bool:
    """Whether the run was stopped before its own end and has but to write its result: no new limit lets it go on before
    that is done."""
    path = folder.path(CHECKPOINTS)
    if not path.exists() or folder.path("result.json").exists():
        return False
    with open_checkpoints(path) as saver:
        graph = build_graph().compile(checkpointer=saver)
        found = graph.get_state({"configurable": {"thread_id": folder.root.name}})
    return found.values.get("halt") is not None and found.next == ("finish",)


def _without_checkpoint(folder: RunFolder) -> RunError:
    return RunError(
        f"The run in {str(folder.root)!r} has no checkpoint from which it could go on.",
        "Give a renamed folder its name back, or start a new run: what was learned is in the memory.",
        "checkpoint-missing",
    )


def run_graph(
    context: Context,
    task: Task,
    folder: RunFolder,
    listen: Callable[[Event], None],
    control: RunControl | None = None,
    answer: str | None = None,
) -> Result:
    """Run the graph with checkpoints in `folder`; a folder with checkpoints is resumed where it stopped, with `answer`
    where it waits for one.

    `control.request_drain()` from a signal handler stops the run before the next node (Interrupted).
    Raises the errors of the nodes, Paused where the run waits, RunError for a corrupt checkpoint, InfrastructureError
    for a run without an end.
    """
    with open_checkpoints(folder.path(CHECKPOINTS)) as saver:
        graph = build_graph().compile(checkpointer=saver)
        config: RunnableConfig = {
            "configurable": {"thread_id": folder.root.name},
            "recursion_limit": recursion_limit(context),
        }
        begun = saver.get_tuple(config) is not None
        given: InputState | Command[Never] | None = None if begun else InputState(task=task)
        if answer is not None:
            given = Command(resume=answer)
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
        if graph.get_state(config).interrupts:
            waiting = folder.read(WAITING_FILE, Waiting)
            if waiting is not None:
                raise Paused(waiting)
    if result is None:
        raise RunError(
            f"The run in {str(folder.root)!r} ended without a result.", "Start it again in a new folder.", "run-corrupt"
        )
    return result
