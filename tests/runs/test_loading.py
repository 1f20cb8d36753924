"""A kernel's module takes the original's parameters by name, or in order where its names differ."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from htam_agent.errors import RunError
from htam_agent.runs.loading import load_state


def module(shapes: list[tuple[int, ...]], names: list[str]) -> nn.Module:
    made = nn.Module()
    for name, shape in zip(names, shapes, strict=True):
        made.register_parameter(name, nn.Parameter(torch.randn(shape)))
    made.register_buffer("total_" + (names[0] if names else ""), torch.randn(3))
    return made


SHAPES = st.lists(st.sampled_from([(2,), (3,), (2, 3), (3, 2)]), max_size=4)


@given(SHAPES)
def test_other_names_are_loaded_in_order(shapes: list[tuple[int, ...]]) -> None:
    original = module(shapes, [f"weight{i}" for i in range(len(shapes))])
    kernel = module(shapes, [f"w{i}" for i in range(len(shapes))])
    load_state(kernel, original.state_dict())
    for mine, theirs in zip(kernel.state_dict().values(), original.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_equal_names_win_over_the_order() -> None:
    original, kernel = module([(2,), (2,)], ["a", "b"]), module([(2,), (2,)], ["b", "a"])
    del kernel.total_b
    kernel.register_buffer("total_a", torch.randn(3))
    load_state(kernel, original.state_dict())
    assert torch.equal(kernel.get_parameter("a"), original.get_parameter("a"))
    assert torch.equal(kernel.get_parameter("b"), original.get_parameter("b"))


@given(SHAPES, SHAPES, st.booleans())
def test_anything_else_is_one_sentence_and_changes_nothing(
    theirs: list[tuple[int, ...]], mine: list[tuple[int, ...]], same_names: bool
) -> None:
    if theirs == mine:
        return
    original = module(theirs, [f"w{i}" for i in range(len(theirs))])
    kernel = module(mine, [f"{'w' if same_names else 'v'}{i}" for i in range(len(mine))])
    before = copy.deepcopy(kernel.state_dict())
    with pytest.raises(RunError) as caught:
        load_state(kernel, original.state_dict())
    assert caught.value.code == "kernel-state"
    assert caught.value.remedy
    assert all(torch.equal(before[name], tensor) for name, tensor in kernel.state_dict().items())
