"""The seams that settings can swap: what each is called, what is built in, and the Protocol that another must fit."""

from __future__ import annotations

from dataclasses import dataclass

from htam_agent.errors import SettingsError
from htam_agent.swapping.choices import SeamName

GROUP = "htam_agent"
"""Entry points lie in the groups htam_agent.compile, htam_agent.run and so on."""


@dataclass(frozen=True)
class Seam:
    """One seam. `built_in` are the names of what comes with the package; `factory`: what is found makes the
    implementation when a run begins, rather than being it."""

    name: SeamName
    built_in: tuple[str, ...]
    mcp: bool = True
    factory: bool = False

    @property
    def group(self) -> str:
        """The group of entry points."""
        return f"{GROUP}.{self.name}"

    def protocol(self) -> type:
        """The Protocol that an implementation fits."""
        from htam_agent.coding.base import Coder
        from htam_agent.memory.embed import Embedder
        from htam_agent.swapping import protocols

        found: dict[SeamName, type] = {
            "compile": protocols.Compiler,
            "run": protocols.Runner,
            "profile": protocols.Profiler,
            "evaluator": protocols.EvaluatorFactory,
            "coder": Coder,
            "embedder": Embedder,
        }
        return found[self.name]


SEAMS: dict[SeamName, Seam] = {
    "compile": Seam("compile", ("nvrtc", "g++")),
    "run": Seam("run", ("strict-evaluator",)),
    "profile": Seam("profile", ("roofline",)),
    "coder": Seam("coder", ("template", "model")),
    "evaluator": Seam("evaluator", ("local",), mcp=False, factory=True),
    "embedder": Seam("embedder", ("hashing",)),
    "executor": Seam("executor", ("local",), mcp=False),
}


def refuse_executor(choice: str) -> None:
    """Where commands run is no seam of its own. Raises SettingsError for anything but "local"."""
    if choice != "local":
        raise SettingsError(
            f"tools.executor = {choice!r}: builds and candidates run in confined processes of this machine, whose "
            "walls and clocks cannot be handed to another command runner.",
            "Swap what does the work instead: tools.evaluator (all of it), tools.compile or tools.run, each also on "
            "another machine by an MCP server; or --evaluator external.",
            "tool-executor",
        )
