"""Everything that the settings swap, found, checked and ready, before any work begins."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from htam_agent.errors import SettingsError
from htam_agent.swapping.bench import Swapped
from htam_agent.swapping.choices import MCP_PREFIX
from htam_agent.swapping.compilers import OtherCompiler
from htam_agent.swapping.finding import find
from htam_agent.swapping.mcp_tools import mcp_implementation
from htam_agent.swapping.seams import SEAMS, refuse_executor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from htam_agent.coding.base import Coder
    from htam_agent.memory.embed import Embedder
    from htam_agent.settings import Settings
    from htam_agent.swapping.choices import SeamName
    from htam_agent.swapping.protocols import Compiler, EvaluatorFactory, Profiler, Runner
    from htam_agent.words import Backend

BUILDS: dict[str, Backend] = {"nvrtc": "cuda", "g++": "cpp"}
"""The built-in compilers, and the backend that each is for."""


@dataclass(frozen=True)
class Chosen:
    """The implementations; None where the built-in one serves."""

    swapped: Swapped = field(default_factory=Swapped)
    coder: Coder | None = None
    evaluator: EvaluatorFactory | None = None
    embedder: Embedder | None = None


def choose(settings: Settings, backend: Backend | None = None, seams: Sequence[SeamName] = tuple(SEAMS)) -> Chosen:
    """What the settings choose for these seams; MCP servers that they name are running afterwards. `backend`: the
    run's.

    Raises SettingsError for the first choice that cannot be found or does not fit its Protocol.
    """
    given = settings.tools.given()
    refuse_executor(given.get("executor", "local"))
    _refuse_parts_beside_whole(given)
    compiler = given.get("compile", "")
    if compiler in BUILDS and backend is not None and BUILDS[compiler] != backend:
        raise SettingsError(
            f"tools.compile = {compiler!r} builds for {BUILDS[compiler]}; this run's backend is {backend}.",
            "Choose the other backend, or leave tools.compile out.",
            "tool-backend",
        )
    found = {name: implementation(name, settings) for name in given if name in seams and name != "executor"}
    return Chosen(
        swapped=Swapped(
            compiler=cast("OtherCompiler | None", found.get("compile")),
            runner=cast("Runner | None", found.get("run")),
            runner_label=given.get("run", ""),
            profiler=cast("Profiler | None", found.get("profile")),
            profiler_label=given.get("profile", ""),
        ),
        coder=cast("Coder | None", found.get("coder")),
        evaluator=cast("EvaluatorFactory | None", found.get("evaluator")),
        embedder=cast("Embedder | None", found.get("embedder")),
    )


def implementation(name: SeamName, settings: Settings) -> object | None:
    """The checked implementation of one seam; None for a built-in one. Raises SettingsError."""
    choice = settings.tools.given().get(name, SEAMS[name].built_in[0])
    if choice.startswith(MCP_PREFIX):
        served = mcp_implementation(name, choice, settings.mcp.servers)
        return OtherCompiler(choice, cast("Compiler", served)) if name == "compile" else served
    found = find(SEAMS[name], choice)
    if found is None:
        return None
    if name == "compile":
        return OtherCompiler(choice, cast("Compiler", found.implementation), found.path, _folders(found.path))
    return found.implementation


def coder_name(settings: Settings) -> Literal["template", "model", "custom"]:
    """Who codes: a built-in name in tools.coder is the same as the setting `coder`."""
    choice = settings.tools.coder
    if choice is None:
        return settings.coder
    return "template" if choice == "template" else "model" if choice == "model" else "custom"


def _refuse_parts_beside_whole(given: dict[SeamName, str]) -> None:
    parts = [name for name in ("compile", "run", "profile") if name in given]
    if parts and given.get("evaluator", "local") != "local":
        raise SettingsError(
            f"tools.evaluator and tools.{parts[0]} are both set: a whole evaluator builds, judges and profiles itself.",
            "Leave one of them out.",
            "tool-conflict",
        )


def _folders(path: str) -> tuple[str, ...]:
    """The folder of the package that an import path leads to, and the module's file where it is no package."""
    top = importlib.import_module(path.partition(":")[0].partition(".")[0])
    places = list(getattr(top, "__path__", []))
    file = getattr(top, "__file__", None)
    return tuple(str(Path(place).resolve()) for place in places or ([file] if file else []))
