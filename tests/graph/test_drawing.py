"""The drawn graph shows every edge that a run can take."""

from __future__ import annotations

import typing

from htam_agent.graph import routes
from htam_agent.graph.build import compiled

STATIC = {
    ("__start__", "prepare"),
    ("retrieve_strategies", "generate"),
    ("profile", "learn"),
    ("finish", "__end__"),
}
ROUTERS = {
    "prepare": routes.after_prepare,
    "select_direction": routes.after_select,
    "generate": routes.after_generate,
    "compile": routes.after_compile,
    "run": routes.after_run,
    "repair": routes.after_repair,
    "learn": routes.after_learn,
}


def test_every_edge_is_visible_and_no_other() -> None:
    conditional = {
        (source, target)
        for source, router in ROUTERS.items()
        for target in typing.get_args(typing.get_type_hints(router)["return"])
    }
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
