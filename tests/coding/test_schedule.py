"""Passes and pairs: every value is there when a pass needs it, and no row is walked more often than needed."""

from __future__ import annotations

import pytest
import torch

from htam_agent.coding.lowering import lower
from htam_agent.coding.program import Use
from htam_agent.coding.schedule import online_pairs, passes
from htam_agent.tracing import trace_model
from tests.coding.operators import cases

PROGRAMS = {name: lower(trace_model(module, list(inputs), name)) for name, (module, inputs) in cases(3, 8).items()}


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_value_is_ready(name: str, online: bool) -> None:
    program = PROGRAMS[name]
    merged = {pair.second.name for pair in online_pairs(program)} if online else set()
    known = {operand.name for operand in program.operands}
    reduced: list[str] = []
    for walk in passes(program, online):
        for value in walk.before:
            assert value.space != "element"
            assert {use.name for use in value.arguments if isinstance(use, Use)} <= known
            known.add(value.name)
        local = set(known)
        for value in walk.values:
            assert {use.name for use in value.arguments if isinstance(use, Use)} <= local
            local.add(value.name)
        for value in walk.reductions:
            assert value.name in merged or {use.name for use in value.arguments if isinstance(use, Use)} <= local
            reduced.append(value.name)
        for output in walk.outputs:
            assert output.value in local
        known.update(value.name for value in walk.reductions)
    assert sorted(reduced) == sorted(value.name for value in program.reductions)


@pytest.mark.parametrize(
    ("name", "multi", "online", "kinds"),
    [
        ("relu", 1, 1, []),
        ("softmax", 3, 2, ["softmax"]),
        ("log-softmax", 3, 2, ["softmax"]),
        ("residual-norm-gelu", 3, 2, ["moments"]),
        ("row-statistics", 3, 2, ["moments"]),
        ("rms-norm", 2, 2, []),
        ("l1-norm", 2, 2, []),
    ],
)
def test_number_of_walks(name: str, multi: int, online: int, kinds: list[str]) -> None:
    program = PROGRAMS[name]
    assert len(passes(program)) == multi
    assert len(passes(program, online=True)) == online
    assert [pair.kind for pair in online_pairs(program)] == kinds


def test_row_outputs_need_no_last_walk() -> None:
    last = passes(PROGRAMS["row-max"])[-1]
    assert last.values == []
    assert [output.space for output in last.outputs] == ["row"]


def test_a_sum_of_other_powers_is_no_pair() -> None:
    module = torch.nn.Softmax(-1)
    program = lower(trace_model(module, [torch.randn(3, 8)], "case"))
    assert online_pairs(program)
    from tests.coding.operators import Function

    other = Function(lambda x: torch.exp(x - x.amin(1, keepdim=True)).sum(1))
    assert online_pairs(lower(trace_model(other, [torch.randn(3, 8)], "case"))) == []
