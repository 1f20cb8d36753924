"""The tools compile, run and profile (see docs/backends.md)."""

from __future__ import annotations

from htam_agent.tools.registry import NAMES, make_tools, tool_by_name

__all__ = ["NAMES", "make_tools", "tool_by_name"]
