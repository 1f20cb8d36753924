"""Renders, builds and runs candidates for tests, and compares them with a float64 reference."""

from __future__ import annotations

import copy
import types
from collections.abc import Mapping

import torch
from torch import nn

from htam_agent.coding.cpp import CppRenderer
from htam_agent.coding.lowering import lower
from htam_agent.coding.plan import Plan
from htam_agent.coding.program import RowProgram
from htam_agent.coding.render import Engine, Rendered
from htam_agent.memory.model import Strategy
from htam_agent.operator import OperatorProfile
from htam_agent.tracing import trace_model

ENGINE = Engine()
RENDERER = CppRenderer()
TOLERANCE = {torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3, torch.float64: 1e-13}
"""Largest error over (size of the element + root mean square of all); for 16 bits half a unit in the last place."""


def traced(module: nn.Module, inputs: list[torch.Tensor]) -> tuple[OperatorProfile, RowProgram]:
    profile = trace_model(module, list(inputs), type(module).__name__)
    return profile, lower(profile)


def planned(program: RowProgram, strategies: Mapping[str, Strategy], path: list[str]) -> Plan:
    """The default plan after the strategies of a path."""
    plan = RENDERER.default_plan(program)
    for name in path:
        plan = plan.apply(name, strategies[name].edit, strategies[name].slot)
    return plan


def rendered(
    profile: OperatorProfile, program: RowProgram, strategies: Mapping[str, Strategy], path: list[str]
) -> Rendered:
    return ENGINE.render(RENDERER, profile, program, planned(program, strategies, path), strategies)


def loaded(source: str, module: nn.Module) -> nn.Module:
    """An instance of a candidate file's ModelNew with the module's state."""
    namespace = types.ModuleType("candidate")
    exec(compile(source, "candidate.py", "exec"), namespace.__dict__)
    kernel: nn.Module = namespace.ModelNew()
    kernel.load_state_dict(module.state_dict())
    return kernel


def error(kernel: nn.Module, module: nn.Module, inputs: list[torch.Tensor]) -> float:
    """Largest error of any output against the module in float64, relative to the element's size plus the root mean
    square of the output. Shapes, types and the places of NaN and infinity must be equal."""
    with torch.no_grad():
        found = _leaves(kernel(*inputs))
        shapes = _leaves(module(*inputs))
        exact = _leaves(copy.deepcopy(module).double()(*[item.double() for item in inputs]))
    worst = 0.0
    for mine, like, reference in zip(found, shapes, exact, strict=True):
        assert mine.shape == like.shape
        assert mine.dtype == like.dtype
        assert torch.equal(mine.isnan(), reference.to(mine.dtype).isnan())
        both = reference.isfinite() & mine.isfinite()
        assert torch.equal(mine[~both].nan_to_num(), reference.to(mine.dtype)[~both].nan_to_num())
        if both.any():
            scale = reference[both].square().mean().sqrt().clamp_min(1e-30)
            distance = (mine[both].double() - reference[both]).abs()
            worst = max(worst, float((distance / (reference[both].abs() + scale)).max()))
    return worst


def _leaves(answer: object) -> list[torch.Tensor]:
    if isinstance(answer, torch.Tensor):
        return [answer]
    assert isinstance(answer, dict | list | tuple)
    return list(answer.values() if isinstance(answer, dict) else answer)
