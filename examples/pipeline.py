"""A pipeline of your own with the agent as one of its nodes: each operator goes to an instance of its own, side by
side, all learn into one memory, and a last node writes down what came back.

    HTAM_BACKEND=cpp HTAM_STEPS=1 python examples/pipeline.py examples/gelu_layernorm.py ...

The parent has a state and a context type that the agent knows nothing of; only `task` and `result` cross the border.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import Send
from typing_extensions import TypedDict

from htam_agent import Result, as_node


@dataclass
class Release:
    """The parent's own context."""

    name: str


class Pipeline(TypedDict, total=False):
    """The parent's own state."""

    files: list[str]
    results: Annotated[list[Result], operator.add]
    notes: str


agent = as_node()


def each_file(state: Pipeline) -> list[Send]:
    """An instance of the agent for each operator."""
    return [Send("optimize", {"task": file}) for file in state["files"]]


def optimize(state: Mapping[str, str]) -> Pipeline:
    """The agent, between the names that it knows and those of this pipeline."""
    return {"results": [agent(state)["result"]]}


def write_notes(state: Pipeline, runtime: Runtime[Release]) -> Pipeline:
    """What this pipeline is for."""
    lines = [f"{result.task}: {result.verdict}, {result.speedup.best or 1.0:.2f}x" for result in state["results"]]
    return {"notes": "\n".join([f"Release {runtime.context.name}", *lines])}


def build() -> CompiledStateGraph[Pipeline, Release, Pipeline, Pipeline]:
    """The checkpointer is the parent's; the agent inherits it, so that its pauses and its resumes are the parent's."""
    graph = StateGraph(Pipeline, context_schema=Release)
    graph.add_node("optimize", optimize)
    graph.add_node("write_notes", write_notes)
    graph.add_conditional_edges(START, each_file, ["optimize"])
    graph.add_edge("optimize", "write_notes")
    graph.add_edge("write_notes", END)
    return graph.compile(checkpointer=InMemorySaver())


def main(files: list[str]) -> None:
    pipeline = build()
    config = {"configurable": {"thread_id": "release"}}
    stream = pipeline.stream(
        {"files": files}, config, context=Release("1.0"), stream_mode=["custom", "values"], subgraphs=True
    )
    for place, mode, chunk in stream:
        if mode == "custom":  # the agent's progress, with the instance that it comes from
            print(f"{place[0][-4:]}  {chunk['kind']:<11} {chunk['text']}", file=sys.stderr)
        elif not place and "notes" in chunk:
            print(chunk["notes"])


if __name__ == "__main__":
    main(sys.argv[1:] or ["examples/gelu_layernorm.py"])
