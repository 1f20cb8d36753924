"""The agent inside larger graphs: another state, another context type, pauses that the parent resumes, instances side
by side, progress through the border."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, Interrupt, Send
from typing_extensions import TypedDict

from htam_agent import Result, Task, as_node
from htam_agent.errors import UsageError
from htam_agent.graph.build import served
from htam_agent.graph.context import Context
from tests.support.instant import EVALUATOR
from tests.support.pausing import TASK, SayingCoder, answers, context_of, options_of


@dataclass
class Company:
    """A context type of the parent's own."""

    name: str


class Alone(TypedDict, total=False):
    """A state of nothing but the agent's."""

    task: str
    result: Result


class Pipeline(TypedDict, total=False):
    """A state that shares no key with the agent's but those that the node is given."""

    files: list[str]
    speedups: Annotated[list[float | None], operator.add]
    signed: str


def pipeline(context: Context) -> CompiledStateGraph[Pipeline, Company, Pipeline, Pipeline]:
    """A parent that sends each file to an instance of its own and signs what comes back."""
    agent = as_node(context)

    def optimize_file(state: dict[str, Task | str]) -> Pipeline:
        result: Result = agent(state)["result"]
        return {"speedups": [result.speedup.best]}

    def sign(state: Pipeline, runtime: Runtime[Company]) -> Pipeline:
        return {"signed": runtime.context.name}

    graph = StateGraph(Pipeline, context_schema=Company)
    graph.add_node("optimize", optimize_file)
    graph.add_node("sign", sign)
    graph.add_conditional_edges(
        START, lambda state: [Send("optimize", {"task": file}) for file in state["files"]], ["optimize"]
    )
    graph.add_edge("optimize", "sign")
    graph.add_edge("sign", END)
    return graph.compile(checkpointer=InMemorySaver())


CONFIG = {"configurable": {"thread_id": "one"}}


def interrupts(state: dict[str, object]) -> list[Interrupt]:
    found = state.get("__interrupt__", [])
    assert isinstance(found, list)
    return found


def test_two_instances_side_by_side_share_a_memory(tmp_path: Path) -> None:
    with context_of(tmp_path, SayingCoder([["1.5"]]), options_of()) as context:
        graph = pipeline(context)
        end = graph.invoke({"files": [TASK.path, TASK.path]}, CONFIG, context=Company("a company"))
        learned = {experience.run for experience in context.memory.experiences}
        assert context.sessions == {}
    assert end == {"files": [TASK.path, TASK.path], "speedups": [1.5, 1.5], "signed": "a company"}
    assert len(learned) == 2, "each has its own run, and both learn into one memory"
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 2


def test_verdicts_and_approvals_cross_a_parent_graph(tmp_path: Path) -> None:
    options = options_of(approve=("direction", "code"), evaluator="external")
    kinds: list[set[str]] = []
    with context_of(tmp_path, SayingCoder([["1.5"]]), options) as context:
        graph = pipeline(context)
        given: object = {"files": [TASK.path, TASK.path]}
        while asked := interrupts(state := graph.invoke(given, CONFIG, context=Company("a company"))):
            kinds.append({one.value["kind"] for one in asked})
            resume = {
                one.id: answers(one.value) if one.value["kind"] in ("facts", "verdicts") else "yes" for one in asked
            }
            given = Command(resume=resume)
    assert kinds == [{"facts"}, {"direction"}, {"code"}, {"verdicts"}, {"verdicts"}]
    assert state["speedups"] == [1.5, 1.5]
    assert len(list((tmp_path / "runs").iterdir())) == 2, "a node that runs again takes up its own run"


def test_a_wrong_answer_in_a_parent_graph_is_asked_for_again(tmp_path: Path) -> None:
    with context_of(tmp_path, SayingCoder([["1.5"]]), options_of(evaluator="external")) as context:
        graph = pipeline(context)
        (facts,) = interrupts(graph.invoke({"files": [TASK.path]}, CONFIG, context=Company("a company")))
        resume = Command(resume=answers(facts.value))
        (asked,) = interrupts(graph.invoke(resume, CONFIG, context=Company("a company")))
        wrong: object
        for wrong in ("nonsense", [], answers(asked.value, kernel_sha256="0" * 64)):
            (again,) = interrupts(graph.invoke(Command(resume=wrong), CONFIG, context=Company("a company")))
            assert again.value["problem"]
            assert again.value["candidates"] == asked.value["candidates"]
        resume = Command(resume=answers(again.value))
        (last,) = interrupts(graph.invoke(resume, CONFIG, context=Company("a company")))
        assert last.value["problem"] == ""
        end = graph.invoke(Command(resume=answers(last.value)), CONFIG, context=Company("a company"))
    assert end["speedups"] == [1.5]


def test_progress_streams_through_the_border(tmp_path: Path) -> None:
    with context_of(tmp_path, SayingCoder([["1.5"]]), options_of()) as context:
        graph = pipeline(context)
        found = [
            (place, event["kind"])
            for place, event in graph.stream(
                {"files": [TASK.path]}, CONFIG, context=Company("a"), stream_mode="custom", subgraphs=True
            )
        ]
    kinds = [kind for _, kind in found]
    assert kinds[:2] == ["prepare", "prepared"]
    assert {"direction", "code", "judged", "learned", "finishing"} <= set(kinds)
    assert all(place and place[0].startswith("optimize:") for place, _ in found), "each event says which instance"


@pytest.mark.parametrize("pauses", [{"HTAM_EVALUATOR": "external"}, {"HTAM_APPROVE": "direction"}])
def test_a_node_without_a_context_or_a_seed_takes_up_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: dict[str, str]
) -> None:
    """Each call makes a context of its own, with a seed of its own."""
    monkeypatch.chdir(tmp_path)
    judged = {} if "HTAM_EVALUATOR" in pauses else {"HTAM_TOOLS": json.dumps({"evaluator": EVALUATOR})}
    for name, value in {"HTAM_BACKEND": "cpp", "HTAM_STEPS": "1", **pauses, **judged}.items():
        monkeypatch.setenv(name, value)
    graph = StateGraph(Alone)
    graph.add_node("optimize", as_node())
    graph.add_edge(START, "optimize")
    app = graph.compile(checkpointer=InMemorySaver())
    given: object = {"task": TASK.path}
    kinds = []
    while asked := interrupts(state := app.invoke(given, CONFIG)):
        kinds.append(asked[0].value["kind"])
        external = kinds[-1] in ("facts", "verdicts")
        given = Command(resume=answers(asked[0].value) if external else "yes")
    assert kinds[0] in ("facts", "direction")
    (run,) = (path.parent for path in (tmp_path / "htam-runs").glob("*/run.json"))
    assert state["result"].run == str(run), "no second folder was made"


def test_a_run_keeps_its_seed_under_a_context_with_another(tmp_path: Path) -> None:
    with context_of(tmp_path, SayingCoder([["1.5"]]), options_of(seed=1)) as context:
        folder = context.start_run(TASK)
        context.options = options_of(seed=2)
        assert context.session(TASK, str(folder.root)).seed == 1
        context.close_sessions()
        assert context.opening == {}, "nothing is kept of a run that has ended"


def test_each_run_of_a_context_keeps_the_folder_under_its_cap(tmp_path: Path) -> None:
    with context_of(tmp_path, SayingCoder([["1.5"]]), options_of(), runs_cap_bytes=0) as context:
        first = Path(as_node(context)({"task": TASK})["result"].run)
        assert (first / "candidates").exists()
        second = Path(as_node(context)({"task": TASK})["result"].run)
        assert context.opening == {}
    assert not (first / "candidates").exists()
    assert (first / "kernel.py").exists()
    assert (second / "candidates").exists()


def test_a_pause_without_a_checkpointer_says_so(tmp_path: Path) -> None:
    with (
        context_of(tmp_path, SayingCoder([["1.5"]]), options_of(evaluator="external")) as context,
        pytest.raises(UsageError, match="no checkpointer"),
    ):
        as_node(context)({"task": TASK})


def test_a_server_that_gives_an_empty_context_gets_the_one_of_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with context_of(tmp_path, SayingCoder([["1.5"]]), options_of()) as context:
        monkeypatch.setattr("htam_agent.graph.context._default", [context])
        end = served().invoke({"task": TASK.path}, context={})
    assert end["result"].speedup.best == pytest.approx(1.5)


def test_a_parent_may_be_asynchronous(tmp_path: Path) -> None:
    import asyncio

    with context_of(tmp_path, SayingCoder([["1.5"]]), options_of()) as context:
        graph = pipeline(context)
        end = asyncio.run(graph.ainvoke({"files": [TASK.path]}, CONFIG, context=Company("a company")))
    assert end["speedups"] == [1.5]
