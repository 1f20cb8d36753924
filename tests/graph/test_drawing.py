"""The drawn graph shows every edge that a run can take."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable

from langgraph.types import Send

from htam_agent.graph import routes
from htam_agent.graph.build import compiled
from htam_agent.graph.state import State

STATIC = {
    ("__start__", "prepare"),
    ("generate", "compile"),
    ("profile", "learn"),
    ("finish", "__end__"),
}
ROUTERS = {
    "prepare": routes.after_prepare,
    "select_direction": routes.after_select,
    "retrieve_strategies": routes.after_retrieve,
    "compile": routes.after_compile,
    "run": routes.after_run,
    "repair": routes.after_repair,
    "learn": routes.after_learn,
}


def targets(router: Callable[[State], object]) -> set[str]:
    """What a router may answer: names, or (as a list of sends) the node that candidates are sent to."""
    answers = typing.get_type_hints(router)["return"]
    union = typing.get_origin(answers) in (types.UnionType, typing.Union)
    parts = typing.get_args(answers) if union else (answers,)
    literal = [name for part in parts for name in typing.get_args(part) if isinstance(name, str)]
    return {*literal, *(["generate"] if list[Send] in parts else [])}


def test_every_edge_is_visible_and_no_other() -> None:
    conditional = {(source, target) for source, router in ROUTERS.items() for target in targets(router)}
    drawn = {(edge.source, edge.target) for edge in compiled().get_graph().edges}
    assert drawn == STATIC | conditional


def test_the_nodes_are_those_of_the_contract() -> None:
    names = set(compiled().get_graph().nodes) - {"__start__", "__end__"}
    assert names == {
        "prepare", "select_direction", "retrieve_strategies", "generate", "compile", "run", "profile", "repair",
        "learn", "finish",
    }  # fmt: skip


def test_only_task_and_result_cross_the_border() -> None:
    graph = compiled()
    assert set(graph.get_input_jsonschema()["properties"]) == {"task"}
    assert set(graph.get_output_jsonschema()["properties"]) == {"result"}
