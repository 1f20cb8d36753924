"""Renders CUDA candidates for tests and runs them on the emulated device."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping

import torch
from torch import nn

from htam_agent.coding.cuda import CudaRenderer
from htam_agent.coding.plan import Plan
from htam_agent.coding.program import RowProgram
from htam_agent.coding.render import Engine
from htam_agent.memory.model import Strategy
from htam_agent.memory.seedfiles import SEED, load_strategies
from htam_agent.operator import OperatorProfile
from tests.coding.kernels import traced
from tests.coding_cuda.emulation import EmulatedKernels

ENGINE = Engine()
RENDERER = CudaRenderer()
STRATEGIES: Mapping[str, Strategy] = load_strategies(SEED / "strategies" / "cuda", "seed")
SMALL = {"threads": 64, "splits": 5}
"""Plan fields for tests: blocks so small that short rows already take several packs a thread."""

# What a strategy needs on the path before it, and the operators (names of tests.coding.operators.cases) to try it on.
BEFORE: dict[str, tuple[list[str], str]] = {
    "cuda-vector-4": ([], "residual-norm-gelu"),
    "cuda-vector-8-half": ([], "softmax"),
    "cuda-vector-2": ([], "channel-affine"),
    "cuda-streaming-hints": (["cuda-vector-4"], "swish-scaled"),
    "cuda-read-only-loads": (["cuda-vector-4"], "softmax"),
    "cuda-reverse-last-pass": (["cuda-vector-4", "cuda-split-row-64"], "residual-norm-gelu"),
    "cuda-warp-row": (["cuda-vector-4"], "row-statistics"),
    "cuda-thread-row": ([], "l2-norm"),
    "cuda-split-row-64": ([], "row-statistics"),
    "cuda-split-row-256": (["cuda-vector-4", "cuda-warp-shuffle-combine"], "softmax"),
    "cuda-row-in-registers": (["cuda-vector-4"], "softmax"),
    "cuda-row-in-shared": (["cuda-vector-4"], "residual-norm-gelu"),
    "cuda-cluster-2": (["cuda-vector-4", "cuda-warp-shuffle-combine"], "softmax"),
    "cuda-cluster-4": ([], "l1-norm"),
    "cuda-cluster-8": (["cuda-vector-4"], "log-softmax"),
    "cuda-cluster-16": (["cuda-vector-4"], "rms-norm"),
    "cuda-cluster-8-registers": (["cuda-vector-4", "cuda-batch-loads-8"], "softmax"),
    "cuda-cluster-16-registers": (["cuda-vector-4"], "residual-norm-gelu"),
    "cuda-cluster-8-cache": (["cuda-vector-4"], "softmax"),
    "cuda-cluster-16-cache": (["cuda-vector-4"], "l1-norm"),
    "cuda-batch-loads-4": (["cuda-vector-4", "cuda-row-in-shared"], "residual-norm-gelu"),
    "cuda-batch-loads-2": (["cuda-vector-4"], "mish"),
    "cuda-batch-loads-8": (["cuda-peel-edges", "cuda-vector-4"], "row-max"),
    "cuda-async-row": (["cuda-vector-4", "cuda-row-in-shared"], "softmax"),
    "cuda-async-next-row": (["cuda-vector-4", "cuda-cluster-2"], "residual-norm-gelu"),
    "cuda-prefetch-next-row": (["cuda-vector-4", "cuda-cluster-2"], "softmax"),
    "cuda-fast-intrinsics": ([], "gelu-tanh"),
    "cuda-reciprocal": (["cuda-vector-4"], "l2-norm"),
    "cuda-nan-maximum": (["cuda-vector-4"], "row-max"),
    "cuda-online-softmax": (["cuda-vector-4", "cuda-cluster-2"], "log-softmax"),
    "cuda-one-pass-moments": (["cuda-vector-4", "cuda-split-row-64"], "residual-norm-gelu"),
    "cuda-peel-edges": (["cuda-vector-4", "cuda-batch-loads-2"], "row-statistics"),
    "cuda-warp-shuffle-combine": ([], "softmax"),
    "cuda-persistent-grid": (["cuda-cluster-2"], "softmax"),
    "cuda-persistent-tiles": (["cuda-vector-4", "cuda-batch-loads-2"], "selu"),
    "cuda-four-rows-a-team": (["cuda-warp-row"], "l1-norm"),
    "cuda-threads-1024": ([], "row-max"),
    "cuda-threads-512": ([], "log-abs"),
    "cuda-threads-128": ([], "rms-norm"),
    "cuda-two-blocks-resident": ([], "softmax"),
    "cuda-keep-fused-value": (["cuda-vector-4", "cuda-row-in-registers"], "residual-norm-gelu"),
}

NAMES = list(STRATEGIES)


def trial(name: str) -> tuple[list[str], str]:
    """The path before a strategy and the operator to try it on: a softmax where nothing else is said. Asynchronous
    copies move 4 bytes at least, so that half-precision elements need packs."""
    wide = ["cuda-vector-4"] if "arrival" in STRATEGIES[name].more_blocks else []
    return BEFORE.get(name, (wide, "softmax"))


def planned(program: RowProgram, path: list[str], **fields: object) -> Plan:
    """The default plan after the strategies of a path, with fields set on top."""
    plan = RENDERER.default_plan(program)
    for name in path:
        strategy = STRATEGIES[name]
        plan = plan.apply(name, strategy.edit, strategy.slot, strategy.more_blocks)
    return Plan.model_validate({**plan.model_dump(), **fields})


def rendered(profile: OperatorProfile, program: RowProgram, path: list[str], **fields: object) -> str:
    """The candidate file."""
    return ENGINE.render(RENDERER, profile, program, planned(program, path, **fields), STRATEGIES).source


@functools.lru_cache(maxsize=64)
def imported(source: str) -> types.ModuleType:
    """The candidate's module."""
    module = types.ModuleType("candidate")
    exec(compile(source, "candidate.py", "exec"), module.__dict__)
    return module


class Emulated:
    """A candidate whose kernels run on the emulated device, on CPU tensors."""

    def __init__(self, source: str, module: nn.Module, order: int = 0, at_end: bool = True) -> None:
        self.file = imported(source)
        self.kernels = EmulatedKernels(self.file.CUDA_SRC, order, at_end)
        self.file.DEVICE = "cpu"
        self.file.GRIDS.clear()
        self.model: nn.Module = self.file.ModelNew()
        self.model.load_state_dict(module.state_dict())

    def __call__(self, *inputs: torch.Tensor) -> object:
        self.file.CUDA = self.kernels
        with torch.no_grad():
            return self.model(*inputs)


def candidate(module: nn.Module, inputs: list[torch.Tensor], path: list[str], **fields: object) -> str:
    """Traces, lowers and renders."""
    profile, program = traced(module, inputs)
    return rendered(profile, program, path, **{**SMALL, **fields})
