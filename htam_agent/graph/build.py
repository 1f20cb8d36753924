"""The graph, as it is drawn:

START -> prepare -> select_direction -> retrieve_strategies -> generate -> compile -> run -> profile -> learn
            ^                              ^          |          |                   |
            |                              +- repair <+----------+                   |
            +------------------------------ next step -------------------------------+-> finish -> END

Each candidate of a step is sent to generate on its own; they are written side by side, built side by side, and measured
one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph.graph import END, START, StateGraph

from htam_agent.graph import nodes, routes
from htam_agent.graph.context import Context
from htam_agent.graph.state import InputState, OutputState, State

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph


def build_graph() -> StateGraph[State, Context, InputState, OutputState]:
    """The agent's graph, not compiled: input {task}, output {result}, context `Context`."""
    return _drawn(StateGraph(State, context_schema=Context, input_schema=InputState, output_schema=OutputState))


def _drawn(
    graph: StateGraph[State, Context, InputState, OutputState],
) -> StateGraph[State, Context, InputState, OutputState]:
    """The graph with its nodes and edges."""
    graph.add_node("prepare", nodes.prepare)
    graph.add_node("select_direction", nodes.select_direction)
    graph.add_node("retrieve_strategies", nodes.retrieve_strategies)
    graph.add_node("generate", nodes.generate)
    graph.add_node("compile", nodes.compile)
    graph.add_node("run", nodes.run)
    graph.add_node("profile", nodes.profile)
    graph.add_node("repair", nodes.repair)
    graph.add_node("learn", nodes.learn)
    graph.add_node("finish", nodes.finish)

    graph.add_edge(START, "prepare")
    graph.add_conditional_edges("prepare", routes.after_prepare)
    graph.add_conditional_edges("select_direction", routes.after_select)
    graph.add_conditional_edges("retrieve_strategies", routes.after_retrieve, ["generate", "learn"])
    graph.add_edge("generate", "compile")
    graph.add_conditional_edges("compile", routes.after_compile)
    graph.add_conditional_edges("run", routes.after_run)
    graph.add_conditional_edges("repair", routes.after_repair, ["generate", "run", "profile", "learn"])
    graph.add_edge("profile", "learn")
    graph.add_conditional_edges("learn", routes.after_learn)
    graph.add_edge("finish", END)
    return graph


def compiled() -> CompiledStateGraph[State, Context, InputState, OutputState]:
    """The graph compiled without a checkpointer."""
    return build_graph().compile()


def served() -> CompiledStateGraph[State, Context, InputState, OutputState]:
    """The graph for a server: no checkpointer, since it brings its own, and no context schema, since it would make the
    context of a JSON object: nodes get the one of the server's process (context_of)."""
    return _drawn(StateGraph(State, input_schema=InputState, output_schema=OutputState)).compile()
