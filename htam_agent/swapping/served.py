"""Which implementation serves each seam, and from where: for `htam doctor`, which really looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from htam_agent.errors import HtamError
from htam_agent.swapping.choices import MCP_PREFIX
from htam_agent.swapping.finding import find
from htam_agent.swapping.seams import SEAMS, Seam, refuse_executor
from htam_agent.words import Record

if TYPE_CHECKING:
    from htam_agent.settings import Settings

BUILT_IN: dict[str, str] = {
    "compile": "NVRTC on cuda, g++ on cpp",
    "run": "the strict evaluator",
    "profile": "times against measured ceilings",
    "evaluator": "on this machine",
    "embedder": "hashed words and n-grams",
    "executor": "confined processes of this machine",
}


class Served(Record):
    """One seam. `problem` is empty where its choice is found and fits; then `remedy` is too."""

    seam: str
    fact: str
    problem: str = ""
    remedy: str = ""


def served(settings: Settings) -> list[Served]:
    """One entry a seam. MCP servers that are named are started."""
    return [_one(seam, settings) for seam in SEAMS.values()]


def _one(seam: Seam, settings: Settings) -> Served:
    choice = settings.tools.given().get(seam.name)
    if choice is None or choice in seam.built_in:
        what = (choice or settings.coder) if seam.name == "coder" else BUILT_IN[seam.name]
        return Served(seam=seam.name, fact=f"built in: {what}")
    try:
        return Served(seam=seam.name, fact=_checked(seam, choice, settings))
    except HtamError as error:
        return Served(seam=seam.name, fact=choice, problem=error.message, remedy=error.remedy)


def _checked(seam: Seam, choice: str, settings: Settings) -> str:
    """What a choice leads to. Raises SettingsError where it leads nowhere or does not fit."""
    if seam.name == "executor":
        refuse_executor(choice)
    if choice.startswith(MCP_PREFIX):
        from htam_agent.swapping.mcp_tools import mcp_implementation

        mcp_implementation(seam.name, choice, settings.mcp.servers)
        name = choice.removeprefix(MCP_PREFIX).partition("/")[0]
        return f"{choice}, the MCP server {settings.mcp.servers[name]}"
    found = find(seam, choice)
    return f"{choice}, from {found.origin} ({found.path})" if found else f"built in: {choice}"
