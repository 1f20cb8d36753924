"""htam_agent makes a PyTorch operator faster: proved equal on hidden inputs, measured faster, with the path it took."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from htam_agent.errors import HtamError

if TYPE_CHECKING:
    from htam_agent.api import aoptimize, as_node, evaluate, optimize
    from htam_agent.graph.build import build_graph
    from htam_agent.runs.records import Result
    from htam_agent.task import Task

__all__ = ["HtamError", "Result", "Task", "aoptimize", "as_node", "build_graph", "evaluate", "optimize"]

_HOMES = {
    "Result": "htam_agent.runs.records",
    "Task": "htam_agent.task",
    "aoptimize": "htam_agent.api",
    "as_node": "htam_agent.api",
    "build_graph": "htam_agent.graph.build",
    "evaluate": "htam_agent.api",
    "optimize": "htam_agent.api",
}


def __getattr__(name: str) -> object:
    """Load a public name on first use: torch, LangGraph and Chroma are not needed to import the package."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
