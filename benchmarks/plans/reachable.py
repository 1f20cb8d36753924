"""The plans that a run can reach: the closure of the plain plan under the strategies, within a number of steps.

A step of the template coder adds one strategy to the best plan so far. Whatever the measurements say, the best plan is
therefore one of these, and so is every candidate. Plans that say the same are one, in whatever order strategies made
them, and plans that write the same device text are one kernel.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.plans.table import plan_key
from htam_agent.coding.lowering import lower
from htam_agent.coding.plan import Plan
from htam_agent.coding.program import RowProgram
from htam_agent.coding.render import Engine, RenderError
from htam_agent.coding.template import renderer_of
from htam_agent.memory.model import SelectionState, Strategy
from htam_agent.memory.retrieval import applicable
from htam_agent.operator import OperatorFeatures, OperatorProfile

DEVICE_TEXT = re.compile(r'^CPP_SRC = r"""\n(.*?)"""$', re.DOTALL | re.MULTILINE)


@dataclass
class Kernel:
    """One device text, with the candidate file that carries it."""

    name: str
    source: str
    text: str
    steps: int
    strategies: list[str]
    plans: list[str] = field(default_factory=list)


@dataclass
class Reachable:
    """All kernels by name, and the moves (kernel, strategy, kernel) between them."""

    kernels: dict[str, Kernel] = field(default_factory=dict)
    moves: set[tuple[str, str, str]] = field(default_factory=set)


def device_text(source: str) -> str:
    """The C++ text of a candidate file. Raises ValueError when there is none."""
    found = DEVICE_TEXT.search(source)
    if found is None:
        raise ValueError("The candidate has no C++ text in CPP_SRC.")
    return found[1]


def kernel_name(text: str) -> str:
    """Name of a device text: 16 digits of its hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Closure:
    """Breadth first over the plans of one operator."""

    def __init__(
        self, operator: OperatorProfile, features: OperatorFeatures, strategies: Mapping[str, Strategy], steps: int
    ) -> None:
        self._operator = operator
        self._features = features
        self._strategies = strategies
        self._steps = steps
        self._renderer = renderer_of("cpp")
        self._engine = Engine()
        self._program: RowProgram = lower(operator)
        self._known: dict[str, tuple[Kernel, frozenset[str]] | None] = {}
        self._found = Reachable()

    def find(self) -> Reachable:
        """The plain plan's kernel (of no steps) is among them, although a run never judges it: it is where the first
        step begins."""
        plain = self._renderer.default_plan(self._program)
        self._rendered(plain, 0)
        layer = {plan_key(plain): plain}
        seen = set(layer)
        for step in range(1, self._steps + 1):
            following: dict[str, Plan] = {}
            for key, plan in layer.items():
                start = self._kernel_of(key)
                for strategy, after, kernel in self._children(plan, step):
                    self._found.moves.add((start, strategy, kernel.name))
                    following.setdefault(plan_key(after), after)
            layer = {key: plan for key, plan in following.items() if key not in seen}
            seen.update(layer)
        return self._found

    def _kernel_of(self, key: str) -> str:
        known = self._known[key]
        assert known is not None, "a plan of a layer was rendered"
        return known[0].name

    def _children(self, plan: Plan, step: int) -> Iterator[tuple[str, Plan, Kernel]]:
        state = SelectionState(
            backend="cpp",
            features=self._features,
            operators=self._operator.operators,
            plan_mapping=plan.mapping,
            plan_staging=plan.staging,
            plan_strategies=plan.strategies,
        )
        for strategy in self._strategies.values():
            if applicable(strategy, state) is not None:
                continue
            try:
                after = plan.apply(strategy.id, strategy.edit, strategy.slot, strategy.more_blocks)
            except ValueError:
                continue
            rendered = self._rendered(after, step)
            # As the coder has it: a strategy whose slot this kernel lacks is refused.
            if rendered is not None and (strategy.slot is None or strategy.slot in rendered[1]):
                yield strategy.id, after, rendered[0]

    def _rendered(self, plan: Plan, step: int) -> tuple[Kernel, frozenset[str]] | None:
        """The plan's kernel and the slots in it; None where the plan cannot be rendered."""
        key = plan_key(plan)
        if key in self._known:
            return self._known[key]
        try:
            rendered = self._engine.render(self._renderer, self._operator, self._program, plan, self._strategies)
        except RenderError:
            self._known[key] = None
            return None
        text = device_text(rendered.source)
        name = kernel_name(text)
        used = sorted({plan.blocks[slot] for slot in rendered.slots})
        kernel = self._found.kernels.setdefault(name, Kernel(name, rendered.source, text, step, used))
        kernel.plans.append(key)
        self._known[key] = (kernel, rendered.slots)
        return self._known[key]
