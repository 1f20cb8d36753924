"""Tracing: what a live module is recorded as."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from htam_agent.operator import OperatorProfile
from htam_agent.tracing import features_of, trace_model


class Module(nn.Module):
    """A module with one of each kind of state."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.unused = nn.Parameter(torch.zeros(100))
        self.register_buffer("shift", torch.zeros(8))
        self.register_buffer("hidden", torch.full((8,), 2.0), persistent=False)
        self.table = torch.tensor([3.0])

    def forward(
        self, x: torch.Tensor, options: dict[str, torch.Tensor], scale: float, flag: bool
    ) -> dict[str, torch.Tensor]:
        y = self.norm(x) * scale + self.shift
        y.add_(options["bias"]).mul_(self.table)
        return {"y": y if flag else -y, "sum": y.sum(-1)}


def profile() -> OperatorProfile:
    inputs: list[object] = [torch.randn(4, 8), {"bias": torch.randn(8), "unread": torch.randn(50)}, 2.0, True]
    return trace_model(Module(), inputs, "module")


def test_names_sources_and_structure() -> None:
    found = profile()
    assert found.untraceable is None
    assert [item.name for item in found.inputs] == ["0", "1.bias", "1.unread"]
    assert [item.name for item in found.parameters] == ["unused", "norm.weight", "norm.bias"]
    assert [item.name for item in found.buffers] == ["shift"]
    assert [item.shape for item in found.outputs] == [(4, 8), (4,)]
    output = found.nodes[-1]
    assert (output.keywords["layout"], output.keywords["keys"]) == ("dict", ["y", "sum"])
    plain = {node.source: node.arguments[0] for node in found.nodes if node.kind == "input" and not node.outputs}
    assert plain == {"2": 2.0, "3": True}
    assert "aten.native_layer_norm" in found.operators
    assert not any(node.target.endswith("add_.Tensor") for node in found.nodes)
    assert [3.0] in found.constants.values()


def test_only_what_is_read_counts() -> None:
    """x, norm.weight, norm.bias, shift, bias, the constant; y and the sum."""
    assert profile().unavoidable_bytes == 4 * (32 + 8 + 8 + 8 + 8 + 1 + 32 + 4)


def test_the_profile_crosses_processes_as_json() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(x > 0, -math.inf)

    found = trace_model(Call(forward), [torch.randn(3, 4)], "masked")
    assert OperatorProfile.model_validate_json(found.model_dump_json()) == found
    assert OperatorProfile.model_validate_json(profile().model_dump_json()) == profile()


class Call(nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: object) -> object:
        assert callable(self.function)
        return self.function(*inputs)


@pytest.mark.parametrize(
    ("function", "written", "read"),
    [
        (lambda x: x.view(-1), 0, 0),
        (lambda x: x.view(-1) * 2, 12, 12),
        (lambda x: (x * 2).t(), 12, 12),
        (lambda x: (x, x.exp()), 12, 12),
        (lambda x: x.clone(), 12, 12),
        (lambda x: x.mul_(2), 12, 12),
        (lambda x: x.sum(1, keepdim=True).expand(3, 4), 3, 12),
    ],
)
def test_aliases_are_free(function: object, written: int, read: int) -> None:
    assert trace_model(Call(function), [torch.randn(3, 4)], "case").unavoidable_bytes == 4 * (written + read)


@pytest.mark.parametrize(
    ("function", "operations"),
    [
        (lambda x: x + 1, 12),
        (lambda x: x @ x.t(), 2 * 3 * 3 * 4),
        (lambda x: torch.relu(x) * 2, 24),
        (lambda x: x.sum(), 12),
        (lambda x: x.view(-1), 0),
    ],
)
def test_operations(function: object, operations: int) -> None:
    assert trace_model(Call(function), [torch.randn(3, 4)], "case").operations == operations


@pytest.mark.parametrize(
    ("module", "shape", "kind"),
    [
        (nn.ReLU(), (3, 4), "pointwise"),
        (nn.Softmax(-1), (3, 4), "softmax"),
        (nn.LayerNorm(4), (3, 4), "normalization"),
        (Call(lambda x: x / x.norm(dim=1, keepdim=True)), (3, 4), "normalization"),
        (Call(lambda x: x.sum(1)), (3, 4), "reduction"),
        (nn.Linear(4, 5), (3, 4), "matmul"),
        (nn.Conv1d(2, 3, 2), (1, 2, 8), "convolution"),
        (nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(21, 2)), (1, 2, 8), "composite"),
        (nn.MaxPool1d(2), (1, 2, 8), "pooling"),
        (Call(lambda x: x.cumsum(1)), (3, 4), "scan"),
        (Call(lambda x: functional.mse_loss(x, x * 2)), (3, 4), "loss"),
        (Call(lambda x: functional.scaled_dot_product_attention(x, x, x)), (1, 1, 4, 8), "attention"),
    ],
)
def test_classes(module: nn.Module, shape: tuple[int, ...], kind: str) -> None:
    assert trace_model(module, [torch.randn(shape)], "case").operator_class == kind


def test_dropout_is_random_in_training_only() -> None:
    module = nn.Dropout(0.5)
    assert trace_model(module, [torch.randn(3, 4)], "case", training=True).random
    assert not trace_model(module, [torch.randn(3, 4)], "case", training=False).random
    assert module.training


def test_large_inputs_cost_no_memory() -> None:
    found = trace_model(nn.ReLU(), [torch.empty(1, device="meta").expand(1 << 20, 1 << 14)], "case")
    assert found.untraceable is None
    assert found.outputs[0].elements == 1 << 34


def test_data_dependent_control_flow_is_said() -> None:
    found = trace_model(Call(lambda x: x if x.sum() > 0 else -x), [torch.randn(3)], "case")
    assert found.untraceable
    assert found.nodes == []
    assert found.inputs[0].shape == (3,)


def test_a_forward_that_raises_is_said() -> None:
    found = trace_model(nn.Linear(3, 2), [torch.randn(4, 7)], "case")
    assert found.untraceable
    assert "RuntimeError" in found.untraceable
    assert [item.name for item in found.parameters] == ["weight", "bias"]


def test_one_tensor_given_twice_is_two_inputs() -> None:
    x = torch.randn(3, 4)
    found = trace_model(Call(lambda a, b: a + b * 2), [x, x], "case")
    assert found.unavoidable_bytes == 3 * 48


def test_kinds_of_inputs() -> None:
    keywords = trace_model(nn.Bilinear(3, 4, 5), {"input1": torch.randn(2, 3), "input2": torch.randn(2, 4)}, "case")
    assert [item.name for item in keywords.inputs] == ["input1", "input2"]
    mixed = trace_model(
        Call(lambda x, i, m, s: torch.where(m, x[i], s)),
        (torch.randn(5), torch.tensor([0, 1]), torch.tensor([True, False]), torch.tensor(2.0)),
        "case",
    )
    assert [item.dtype for item in mixed.inputs] == ["float32", "int64", "bool", "float32"]
    assert mixed.inputs[3].shape == ()


def test_the_models_own_state_is_left_alone() -> None:
    module = nn.BatchNorm1d(4)
    before = module.running_mean.clone()
    found = trace_model(module, [torch.randn(3, 4)], "case", training=True)
    assert torch.equal(module.running_mean, before)
    assert any(node.target.startswith("aten.copy_") for node in found.nodes)


def test_features() -> None:
    found = features_of(trace_model(nn.Softmax(-1), [torch.randn(6, 40, dtype=torch.float16)], "case"))
    assert (found.rows, found.columns, found.row_bytes, found.dtype) == (6, 40, 80, "float16")
    assert (found.reductions, found.full_inputs, found.transcendentals) == (2, 1, 1)
    flat = features_of(trace_model(nn.Sigmoid(), [torch.randn(6, 40)], "case"))
    assert (flat.rows, flat.columns) == (1, 240)
    assert features_of(trace_model(nn.Linear(4, 5), [torch.randn(3, 4)], "case")).operator_class == "matmul"


class Applied(nn.Module):
    """A module of one function."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "read"),
    [
        (torch.relu, 4 * 64 * 64),
        (lambda x: x[:, :, ::8, ::16] * 2.0, 4 * 8 * 4),
        (lambda x: x[:, :1] + x, 4 * 64 * 64),
        (torch.triu, 0),
        (lambda x: x.flatten()[torch.tensor([1, 5])] + 1.0, 0),
        (lambda x: functional.max_pool2d(x, 1, stride=8), 0),
        (lambda x: functional.max_pool2d(x, 2, stride=2), 4 * 64 * 64),
        (lambda x: functional.conv2d(x, torch.ones(4, 4, 1, 1), stride=8), 0),
        (lambda x: x.where(x > 0, 0.0), 4 * 64 * 64),
        (lambda x: x.split(16, -1)[0] * 2.0, 4 * 64 * 16),
    ],
)
def test_of_what_is_read_in_part_only_that_part_counts(function: Callable[..., torch.Tensor], read: int) -> None:
    found = trace_model(Applied(function), [torch.randn(1, 4, 64, 64)], "part")
    assert found.untraceable is None
    written = sum(info.elements for info in found.outputs)
    constants = sum(len(values) for values in found.constants.values())
    assert 4 * (read + written) <= found.unavoidable_bytes <= 4 * (read + written) + 8 * constants + 64
