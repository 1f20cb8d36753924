"""The graph for servers (`langgraph dev` reads langgraph.json, which names this): no checkpointer and no store, since a
server brings its own. Its context comes from the settings of the server's process."""

from __future__ import annotations

from htam_agent.graph.build import served

graph = served()
