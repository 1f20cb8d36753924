"""The template coder: candidates from the memory's strategies, without a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from htam_agent.coding.base import Code, CodeRequest, RepairRequest
from htam_agent.coding.cpp import CppRenderer
from htam_agent.coding.lowering import Unsupported, lower
from htam_agent.coding.plan import Plan
from htam_agent.coding.program import RowProgram
from htam_agent.coding.render import SKELETONS, Engine, Rendered, Renderer, RenderError
from htam_agent.coding.traffic import moved_bytes
from htam_agent.memory.model import Strategy
from htam_agent.operator import OperatorProfile
from htam_agent.words import Backend


class TemplateCoder:
    """Implements the Coder protocol. A step takes the best plan so far (at first the backend's plain plan), applies one
    strategy's edit, puts its block into the skeleton and renders.

    `strategies` are all that the memory holds: those on the best plan's path must be among them. Of a memory that
    changes give a function that returns what it holds now: strategies are added while the coder lives.
    """

    name = "template"

    def __init__(
        self,
        strategies: Mapping[str, Strategy] | Iterable[Strategy] | Callable[[], Mapping[str, Strategy]],
        skeletons: Path = SKELETONS,
    ) -> None:
        if callable(strategies):
            self._strategies = strategies
        else:
            items = strategies.values() if isinstance(strategies, Mapping) else strategies
            given = {strategy.id: strategy for strategy in items}
            self._strategies = lambda: given
        self._engine = Engine(skeletons)

    def initial_plan(self, operator: OperatorProfile, backend: Backend) -> Plan | None:
        """The backend's plain plan for this operator; None when it cannot be rendered."""
        try:
            return renderer_of(backend).default_plan(lower(operator))
        except Unsupported:
            return None

    def generate(self, request: CodeRequest) -> Code:
        """The best plan plus the first strategy of the request that changes the kernel (the `index`-th such one when
        several candidates are written)."""
        return self._answer(request, skip=frozenset(), index=request.index)

    def repair(self, request: RepairRequest) -> Code:
        """Takes back the edit at fault, since it starts again from the best plan, and applies the next strategy (the
        `index`-th next one when several candidates are mended side by side)."""
        return self._answer(request.request, skip=frozenset(request.tried), index=request.request.index)

    def _answer(self, request: CodeRequest, skip: frozenset[str], index: int) -> Code:
        started = time.perf_counter()
        try:
            program = lower(request.operator)
        except Unsupported as error:
            return Code(refusal=str(error), hopeless=True, seconds=time.perf_counter() - started)
        renderer = renderer_of(request.backend)
        base = request.best.plan if request.best is not None and request.best.plan is not None else None
        plan = base if base is not None else renderer.default_plan(program)
        reasons: list[str] = []
        known = self._strategies()
        for scored in request.strategies:
            strategy = known.get(scored.strategy.id, scored.strategy)
            if strategy.id in skip or strategy.backend != request.backend:
                continue
            try:
                edited, rendered = self._apply(renderer, request, program, plan, strategy)
            except RenderError as error:
                reasons.append(f"{strategy.id}: {error}")
                continue
            if index > 0:
                index -= 1
                continue
            return Code(
                source=rendered.source,
                strategy=strategy.id,
                plan=edited,
                moved_bytes=moved_bytes(program, edited, request.device),
                note="; ".join(reasons),
                seconds=time.perf_counter() - started,
            )
        why = "; ".join(reasons) or "no strategy is left for this step"
        place = request.direction.id if request.direction else "the memory"
        refusal = f"no strategy of {place} applies ({why})"
        return Code(refusal=refusal, seconds=time.perf_counter() - started)

    def _apply(
        self, renderer: Renderer, request: CodeRequest, program: RowProgram, plan: Plan, strategy: Strategy
    ) -> tuple[Plan, Rendered]:
        """The edited plan and its file. Raises RenderError when the strategy would change nothing."""
        if strategy.id in plan.strategies:
            raise RenderError("it is on the plan's path already")
        needs = strategy.preconditions
        if needs.plan_mapping is not None and plan.mapping not in needs.plan_mapping:
            raise RenderError(f"the plan's mapping is {plan.mapping}, needed is {' or '.join(needs.plan_mapping)}")
        if needs.plan_staging is not None and plan.staging not in needs.plan_staging:
            raise RenderError(f"the plan's staging is {plan.staging}, needed is {' or '.join(needs.plan_staging)}")
        try:
            edited = plan.apply(strategy.id, strategy.edit, strategy.slot, strategy.more_blocks)
        except ValueError as error:
            raise RenderError(f"its edit does not fit the plan ({error})") from error
        known = {**self._strategies(), strategy.id: strategy}
        rendered = self._engine.render(renderer, request.operator, program, edited, known)
        if strategy.slot is not None and strategy.block.strip() and strategy.slot not in rendered.slots:
            raise RenderError(f"this kernel has no place for its slot {strategy.slot!r}")
        if request.best is not None and _body(rendered.source) == _body(request.best.source):
            raise RenderError("it changes nothing in this kernel")
        return edited, rendered


def _body(source: str) -> str:
    """A candidate file without its docstring, which names the strategies whether or not they change anything."""
    parts = source.split('"""', 2)
    return parts[2] if len(parts) == 3 and not parts[0].strip() else source


def renderer_of(backend: Backend) -> Renderer:
    """The backend's part of the rendering."""
    if backend == "cpp":
        return CppRenderer()
    from htam_agent.coding.cuda import CudaRenderer

    return CudaRenderer()
