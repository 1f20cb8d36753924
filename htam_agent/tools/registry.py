"""Tools by name. What builds, judges and profiles behind them is swapped by settings (docs/swapping.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from htam_agent.errors import SettingsError
from htam_agent.tools import compile as compile_module
from htam_agent.tools import profile as profile_module
from htam_agent.tools import run as run_module
from htam_agent.tools.session import ToolSession

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

    from htam_agent.tools.base import ToolBench

_MODULES = {"compile": compile_module, "run": run_module, "profile": profile_module}
_ALONE = {
    "compile": compile_module.compile_tool,
    "run": run_module.run_tool,
    "profile": profile_module.profile_tool,
}

NAMES: tuple[str, ...] = tuple(_MODULES)


def make_tools(bench: ToolBench) -> dict[str, BaseTool]:
    """The three tools on an open bench. They share builds and times (tools/session.py)."""
    session = ToolSession(bench)
    return {name: module.bound(session) for name, module in _MODULES.items()}


def tool_by_name(name: str) -> BaseTool:
    """A tool on its own. Raises SettingsError for an unknown name."""
    try:
        return _ALONE[name]()
    except KeyError:
        raise SettingsError(
            f"There is no tool {name!r}.", f"Choose one of {', '.join(NAMES)}.", "tool-unknown"
        ) from None
