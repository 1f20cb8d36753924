"""Row lengths, row counts and special values, on plans that combine several strategies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.coding.kernels import TOLERANCE, error, traced
from tests.coding.operators import Function, cases
from tests.coding_cuda.support import RENDERER, Emulated, candidate, planned

PLANS: dict[str, tuple[list[str], dict[str, object]]] = {
    "plain": ([], {}),
    "peeled": (
        ["cuda-vector-4", "cuda-peel-edges", "cuda-batch-loads-2", "cuda-warp-shuffle-combine"], {"threads": 32},
    ),
    "cluster": (
        ["cuda-vector-4", "cuda-cluster-4", "cuda-async-next-row", "cuda-warp-shuffle-combine"], {"threads": 32},
    ),
    "registers": (["cuda-vector-2", "cuda-row-in-registers", "cuda-batch-loads-4"], {"threads": 128}),
    "split": (["cuda-vector-4", "cuda-split-row-64", "cuda-batch-loads-2"], {"threads": 32, "splits": 3}),
}  # fmt: skip


@pytest.mark.parametrize("plan", list(PLANS))
@pytest.mark.parametrize("columns", [2, 7, 1000])
def test_row_lengths(plan: str, columns: int) -> None:
    path, fields = PLANS[plan]
    module, inputs = cases(9, columns, torch.float32)["softmax"]
    kernel = Emulated(candidate(module, inputs, path, **fields), module, order=columns % 3)
    assert error(kernel, module, inputs) <= TOLERANCE[torch.float32]


@pytest.mark.slow
@pytest.mark.parametrize("plan", list(PLANS))
@pytest.mark.parametrize("operator", ["softmax", "residual-norm-gelu", "row-statistics", "l1-norm", "row-max"])
def test_every_operator_and_type(plan: str, operator: str) -> None:
    path, fields = PLANS[plan]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for columns in (33, 1000, 4097):
            module, inputs = cases(5, columns, dtype)[operator]
            profile, program = traced(module, inputs)
            if RENDERER.refusal(program, planned(program, path, **fields)):
                continue  # this operator has nothing to stage
            source = candidate(module, inputs, path, **fields)
            assert error(Emulated(source, module, order=columns % 3), module, inputs) <= TOLERANCE[dtype]
            assert profile.operators


@pytest.mark.parametrize("plan", ["plain", "cluster"])
def test_special_values_stay_where_torch_has_them(plan: str) -> None:
    path, fields = PLANS[plan]
    nan, infinite = float("nan"), float("inf")
    x = torch.randn(6, 70, generator=torch.Generator().manual_seed(3))
    x[0, 69] = nan
    x[1, 0] = infinite
    x[2, :] = -infinite
    x[3, 5] = -infinite
    x[4, 3], x[4, 60] = nan, infinite
    for online in ([], ["cuda-online-softmax"]):
        module = Function(lambda a: torch.softmax(a, -1))
        kernel = Emulated(candidate(module, [x], [*path, *online], **fields), module)
        assert error(kernel, module, [x]) <= TOLERANCE[torch.float32]
    module = Function(lambda a: (a.amax(1), torch.relu(a - a.amin(1, keepdim=True))))
    assert error(Emulated(candidate(module, [x], path, **fields), module), module, [x]) <= TOLERANCE[torch.float32]


def test_moments_of_a_large_mean_do_not_cancel() -> None:
    """Shifted sums keep the digits that plain sums of squares lose."""
    x = 1000.0 + torch.randn(5, 600, generator=torch.Generator().manual_seed(5))
    module = Function(lambda a: nn.functional.layer_norm(a, (600,)))
    kernel = Emulated(candidate(module, [x], ["cuda-vector-4", "cuda-one-pass-moments"], threads=32), module)
    assert error(kernel, module, [x]) <= 3e-4  # the spacing of float32 near 1000 is 6e-5
    staged = Emulated(candidate(module, [x], ["cuda-vector-4"], threads=32), module)
    assert error(kernel, module, [x]) <= 2 * error(staged, module, [x]) + 1e-6


@pytest.mark.parametrize("path", [[], ["cuda-vector-4", "cuda-batch-loads-2", "cuda-peel-edges"]])
def test_broadcast_operands_of_a_flat_kernel(path: list[str]) -> None:
    generator = torch.Generator().manual_seed(7)
    for width in (5, 8):
        shapes = [(4, 6, 5, width), (6, 1, 1), (width,), (4, 1, 1, 1)]
        inputs = [torch.randn(shape, generator=generator) for shape in shapes]
        module = Function(lambda a, b, c, d: torch.relu(a * b + c) * d)
        kernel = Emulated(candidate(module, inputs, path, threads=32), module)
        assert error(kernel, module, inputs) <= TOLERANCE[torch.float32]


def test_double_precision_and_truth_values() -> None:
    x = torch.randn(5, 130, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    module = Function(lambda a: (torch.softmax(a, -1), a > 0.5))
    for path in (["cuda-vector-2"], ["cuda-cluster-2", "cuda-online-softmax", "cuda-warp-shuffle-combine"]):
        kernel = Emulated(candidate(module, [x], path, threads=32), module)
        answer = kernel(x)
        assert isinstance(answer, tuple)
        soft, truth = answer
        assert torch.allclose(soft, torch.softmax(x, -1), rtol=1e-13, atol=1e-16)
        assert torch.equal(truth, x > 0.5)


@pytest.fixture(scope="module")
def general_kernels() -> list[Emulated]:
    """One flat and one row kernel that serve other sizes than the traced ones."""
    flat = Function(lambda a: a * torch.sigmoid(a))
    row = Function(lambda a: torch.log_softmax(a, -1))
    vector = ["cuda-vector-4", "cuda-batch-loads-2", "cuda-peel-edges"]
    x = torch.randn(6, 37)
    return [
        Emulated(candidate(flat, [x], vector, threads=32), flat),
        Emulated(candidate(row, [x], ["cuda-vector-4", "cuda-cluster-2", "cuda-persistent-grid"], threads=32), row),
    ]


@given(rows=st.integers(1, 40), columns=st.integers(1, 300))
@settings(max_examples=25)
def test_general_sizes(general_kernels: list[Emulated], rows: int, columns: int) -> None:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * 1000 + columns))
    assert torch.allclose(torch.as_tensor(general_kernels[0](x)), nn.functional.silu(x), atol=1e-6)
    y = x[:, :1].expand(rows, 37).contiguous() * torch.arange(37)
    assert torch.allclose(torch.as_tensor(general_kernels[1](y)), torch.log_softmax(y, -1), atol=1e-5, rtol=1e-5)
