"""Every CUDA strategy builds for sm_90 with the real compiler, without a GPU, and keeps its registers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from htam_agent.backends.base import DefaultLimits
from htam_agent.backends.cuda import CudaBackend
from htam_agent.verdict import CompileResult
from tests.coding.kernels import traced
from tests.coding.operators import Function, cases
from tests.coding_cuda.support import NAMES, STRATEGIES, imported, rendered, trial

BACKEND = CudaBackend(architecture="sm_90")

pytestmark = pytest.mark.skipif(not BACKEND.can_build().ok, reason="NVRTC is not installed (extra cuda13)")


def _built(source: str, folder: Path) -> CompileResult:
    result = BACKEND.build(imported(source).CUDA_SRC, folder, DefaultLimits())
    assert result.ok, result.log
    return result


def _candidate(module: nn.Module, inputs: list[torch.Tensor], path: list[str]) -> str:
    profile, program = traced(module, inputs)
    return rendered(profile, program, path)


@pytest.mark.parametrize(("index", "name"), list(enumerate(NAMES)), ids=NAMES)
def test_strategy_builds(index: int, name: str, tmp_path: Path) -> None:
    """With the seed's own numbers of threads, for one storage type each (the slow test builds all)."""
    allowed = STRATEGIES[name].preconditions.dtypes or ["float32", "bfloat16", "float16"]
    _build_one(name, getattr(torch, allowed[index % len(allowed)]), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_strategy_builds_for_every_type(name: str, tmp_path: Path) -> None:
    for dtype in STRATEGIES[name].preconditions.dtypes or ["float32", "float16", "bfloat16"]:
        _build_one(name, getattr(torch, dtype), tmp_path)


def _build_one(name: str, dtype: torch.dtype, folder: Path) -> None:
    before, operator = trial(name)
    columns = 29 if name == "cuda-thread-row" else 9001
    result = _built(_candidate(*cases(3, columns, dtype)[operator], [*before, name]), folder)
    assert result.kernels
    assert "warning" not in result.log, result.log
    for kernel in result.kernels:
        # A few bytes of the checked path at row ends may spill where the bounds ask for a second resident block.
        assert kernel.spill_bytes is not None
        assert kernel.spill_bytes <= 64
        assert kernel.static_shared_bytes == 0


REAL: dict[str, tuple[tuple[int, int], str, list[str], int]] = {
    "softmax-shared": (
        (4096, 393216), "softmax",
        ["cuda-cluster-8", "cuda-vector-4", "cuda-warp-shuffle-combine", "cuda-batch-loads-4", "cuda-fast-intrinsics",
         "cuda-online-softmax"], 64,
    ),
    "softmax-next-row": (
        (4096, 393216), "softmax",
        ["cuda-cluster-8", "cuda-vector-4", "cuda-warp-shuffle-combine", "cuda-async-next-row", "cuda-fast-intrinsics"],
        64,
    ),
    "softmax-registers": (
        (4096, 393216), "softmax",
        ["cuda-cluster-16-registers", "cuda-vector-4", "cuda-warp-shuffle-combine", "cuda-batch-loads-4",
         "cuda-fast-intrinsics"], 128,
    ),
    "l2-shared": (
        (32768, 65535), "l2",
        ["cuda-cluster-4", "cuda-vector-4", "cuda-batch-loads-4", "cuda-peel-edges", "cuda-warp-shuffle-combine"], 64,
    ),
    "layer-norm-split": (
        (16, 4194304), "layer-norm",
        ["cuda-split-row-64", "cuda-vector-4", "cuda-batch-loads-4", "cuda-one-pass-moments", "cuda-reverse-last-pass"],
        128,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REAL))
def test_kernels_for_large_shapes_keep_their_registers(name: str, tmp_path: Path) -> None:
    """Shapes of which no copy fits this machine: traced on storage of one element. The bound is on registers."""
    (rows, columns), operator, path, most = REAL[name]
    module: nn.Module = {
        "softmax": Function(lambda a: torch.softmax(a, -1)),
        "l2": Function(lambda a: a / torch.norm(a, p=2, dim=1, keepdim=True)),
        "layer-norm": Function(lambda a: torch.nn.functional.layer_norm(a, (columns,))),
    }[operator]
    result = _built(_candidate(module, [torch.empty(1).expand(rows, columns)], path), tmp_path)
    for kernel in result.kernels:
        assert kernel.spill_bytes == 0
        assert kernel.registers is not None
        assert kernel.registers <= most
