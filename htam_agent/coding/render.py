"""Rendering: a row program, a plan and the strategies on its path become a candidate file.

A skeleton (skeletons/*.j2) is loops and nothing else. Where an optimisation may go it calls `slot(name, ...)`, which
renders the block of the strategy that fills this slot of the plan, or nothing. So a kernel can only contain what
the strategies at hand provide. Blocks are other people's text: they are rendered in a sandbox, and an undefined name
is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from htam_agent.coding.plan import Plan
from htam_agent.coding.program import RowProgram
from htam_agent.coding.sizes import sizes_of
from htam_agent.memory.model import Strategy
from htam_agent.operator import OperatorProfile
from htam_agent.words import Backend

SKELETONS = Path(__file__).parent / "skeletons"


class RenderError(Exception):
    """A plan that cannot be rendered; the message is a sentence for the user."""


class Renderer(Protocol):
    """What a backend adds to the rendering."""

    backend: Backend
    skeleton: str
    """Template of the device source."""
    candidate: str
    """Template of the candidate file, which has the device source as `source`."""

    def default_plan(self, program: RowProgram) -> Plan:
        """The plain kernel: no strategy."""
        ...

    def refusal(self, program: RowProgram, plan: Plan) -> str:
        """Why this program cannot be computed by this plan ("" when it can): a field without the block that carries
        its code, a mapping that needs reductions, ..."""
        ...

    def context(self, program: RowProgram, plan: Plan) -> Mapping[str, object]:
        """Names that the skeleton and every block see, besides `program`, `plan`, `slot` and `filled`."""
        ...


@dataclass(frozen=True)
class Rendered:
    """A candidate file, and the slots whose blocks it contains."""

    source: str
    slots: frozenset[str]


class Engine:
    """Jinja with the skeletons of a folder (the package's by default)."""

    def __init__(self, skeletons: Path = SKELETONS) -> None:
        self.environment = ImmutableSandboxedEnvironment(
            loader=jinja2.FileSystemLoader(skeletons),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )
        self.environment.filters["pythonic"] = repr
        self._blocks: dict[str, jinja2.Template] = {}
        """Blocks that were compiled before: that takes longer than rendering them."""

    def render(
        self,
        renderer: Renderer,
        profile: OperatorProfile,
        program: RowProgram,
        plan: Plan,
        strategies: Mapping[str, Strategy],
    ) -> Rendered:
        """The candidate file of a plan.

        Raises RenderError when a strategy on the path is not at hand, a block fails, or the plan does not fit.
        """
        missing = [name for name in plan.strategies if name not in strategies]
        if missing:
            raise RenderError(f"the strategies {', '.join(missing)} of the plan are not in the memory")
        reason = renderer.refusal(program, plan)
        if reason:
            raise RenderError(reason)
        context: dict[str, object] = {"program": program, "plan": plan, **renderer.context(program, plan)}
        used: set[str] = set()
        context["slot"] = self._slot(plan, strategies, context, used)
        context["refuse"] = _refuse
        context["filled"] = lambda name: name in plan.blocks
        try:
            source = _tidy(self.environment.get_template(renderer.skeleton).render(context))
            text = self.environment.get_template(renderer.candidate).render(
                {
                    **context,
                    "source": source,
                    "profile": profile,
                    "sizes": sizes_of(program),
                    "titles": [strategies[name].title for name in plan.strategies],
                }
            )
        except jinja2.TemplateError as error:
            raise RenderError(f"the skeleton {renderer.skeleton} cannot be rendered: {error}") from error
        return Rendered(text, frozenset(used))

    def _slot(
        self, plan: Plan, strategies: Mapping[str, Strategy], context: Mapping[str, object], used: set[str]
    ) -> Callable[..., str]:
        def slot(name: str, **local: object) -> str:
            strategy = strategies.get(plan.blocks.get(name, ""))
            if strategy is None:
                return ""
            used.add(name)
            text = strategy.block if name == strategy.slot else strategy.more_blocks.get(name, "")
            try:
                return self._block(text).render({**context, **local})
            except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError) as error:
                raise RenderError(f"the block of strategy {strategy.id} cannot be rendered: {error}") from error

        return slot

    def _block(self, text: str) -> jinja2.Template:
        if text not in self._blocks:
            self._blocks[text] = self.environment.from_string(text)
        return self._blocks[text]


def _refuse(reason: str) -> str:
    """For blocks: this strategy does not fit this kernel."""
    raise RenderError(reason)


def _tidy(text: str) -> str:
    """No trailing blanks and no runs of empty lines."""
    lines: list[str] = []
    for line in text.splitlines():
        stripped = line.rstrip()
        if stripped or (lines and lines[-1]):
            lines.append(stripped)
    return "\n".join(lines).strip() + "\n"
