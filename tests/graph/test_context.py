"""The run-time context: which folder a run takes, and who ends its processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from langchain_core.tools import BaseTool
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from typing_extensions import TypedDict

from htam_agent import as_node, build_graph
from htam_agent.coding.base import Code, Coder, CodeRequest
from htam_agent.errors import InfrastructureError, RunError
from htam_agent.graph import nodes
from htam_agent.graph.context import BenchLike, Context, context_of
from htam_agent.graph.events import Event
from htam_agent.graph.runner import run_graph
from htam_agent.runs.records import Result, RunOptions
from htam_agent.services import make_context
from htam_agent.settings import Settings
from htam_agent.task import Task
from tests.support.command import ROOT

TASK = Task.parse(str(ROOT / "tests" / "tasks" / "pointwise_chain.py"))
OTHER = Task.parse(str(ROOT / "tests" / "tasks" / "row_softmax.py"))
OPTIONS = RunOptions(backend="cpp", steps=1, seed=1)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with closing(make_context(Settings.load({"runs": tmp_path}), OPTIONS, tmp_path / "run")) as made:
        yield made


def test_prepare_takes_up_its_own_run_and_no_other(context: Context) -> None:
    begun = context.take_up_run(TASK)
    assert context.take_up_run(TASK).root == begun.root, "a replayed prepare finds its run"
    elsewhere = TASK.model_copy(update={"path": "/moved/pointwise_chain.py"})
    assert context.take_up_run(elsewhere).root == begun.root
    with pytest.raises(RunError) as caught:
        context.take_up_run(OTHER)
    assert caught.value.code == "run-exists"
    context.options = OPTIONS.model_copy(update={"seed": 2})
    assert context.take_up_run(TASK).root == begun.root, "the run keeps the seed that it began with"
    context.options = OPTIONS.model_copy(update={"steps": 2})
    with pytest.raises(RunError, match="already holds a run"):
        context.take_up_run(TASK)


def test_a_new_run_never_takes_a_folder_that_holds_one(context: Context) -> None:
    context.start_run(TASK)
    with pytest.raises(RunError, match="already holds a run"):
        context.start_run(TASK)


class FailingCoder:
    """Breaks where a machine would break: not a candidate's failure, an exception."""

    name = "failing"

    def __init__(self, inner: Coder) -> None:
        self.initial_plan = inner.initial_plan

    def generate(self, request: CodeRequest) -> Code:
        raise InfrastructureError("The coder's machine is gone.", "Start it again.")

    repair = generate


def children() -> set[int]:
    """Processes that descend from this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def ended(before: set[int]) -> bool:
    deadline = time.monotonic() + 10
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    return not children() - before


def invoke_node(context: Context) -> None:
    as_node(context)({"task": TASK})


def invoke_server(context: Context) -> None:
    build_graph().compile().invoke({"task": TASK}, context=context)


def invoke_parent(context: Context) -> None:
    class Parent(TypedDict, total=False):
        task: Task
        result: Result

    parent = StateGraph(Parent)
    parent.add_node("optimize", as_node(context))
    parent.add_edge(START, "optimize")
    parent.compile().invoke({"task": TASK})


@pytest.mark.parametrize("invoke", [invoke_node, invoke_server, invoke_parent])
def test_a_failed_run_leaves_no_processes(context: Context, invoke: Callable[[Context], None]) -> None:
    before = children()
    context.coder = FailingCoder(context.coder)
    with pytest.raises(InfrastructureError, match="machine is gone"):
        invoke(context)
    assert ended(before)
    assert context.sessions == {}


def test_tools_that_cannot_be_made_leave_no_processes(context: Context) -> None:
    def no_tools(bench: BenchLike) -> Mapping[str, BaseTool]:
        assert children() - before, "the evaluator's processes live by now"
        raise InfrastructureError("There are no tools.", "Make some.")

    before = children()
    context.make_tools = no_tools
    with pytest.raises(InfrastructureError, match="no tools"):
        invoke_server(context)
    assert ended(before)


def test_a_failure_late_in_prepare_leaves_no_processes(context: Context) -> None:
    before = children()

    def writer(event: Event) -> None:
        if event["kind"] == "prepared":
            raise InfrastructureError("Nobody listens.", "Listen.")

    with pytest.raises(InfrastructureError, match="Nobody listens"):
        nodes.prepare({"task": TASK}, Runtime(context=context, stream_writer=writer))
    assert ended(before)


def test_the_default_context_is_made_once_for_all_threads(monkeypatch: pytest.MonkeyPatch, context: Context) -> None:
    made = []

    def slowly() -> Context:
        time.sleep(0.05)
        made.append(context)
        return context

    monkeypatch.setattr("htam_agent.graph.context._default", [])
    monkeypatch.setattr("htam_agent.graph.embedding.default_context", slowly)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: context_of(Runtime()), range(8)))
    assert len(made) == 1
    assert all(one is context for one in found)


def test_a_run_without_an_end_is_one_sentence(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    for place in ("runner", "embedding"):
        monkeypatch.setattr(f"htam_agent.graph.{place}.recursion_limit", lambda context: 2)
    with pytest.raises(InfrastructureError) as caught:
        run_graph(context, TASK, context.start_run(TASK), lambda event: None)
    assert caught.value.code == "graph-endless"
    assert caught.value.remedy
    context.folder = None
    with pytest.raises(InfrastructureError) as caught:
        invoke_node(context)
    assert caught.value.code == "graph-endless"
    context.close_sessions()
    assert ended(before)
