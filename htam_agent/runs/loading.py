"""Result.load: the kernel as a module in the caller's own process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from torch import Tensor, nn

    from htam_agent.runs.records import Result


def load_kernel(result: Result, state: dict[str, Tensor] | None) -> nn.Module:
    """Build `ModelNew` from the result's kernel file with the task's constructor arguments, and load the parameters.

    Raises RunError when the result has no kernel, its file is gone, or the parameters do not fit.
    """
    import torch

    from htam_agent.evaluation.loading import load_task

    if result.kernel is None or result.source is None:
        raise RunError(
            f"This result has no kernel ({result.verdict}: {result.reason}).", "Keep the original module.", "no-kernel"
        )
    device = "cuda" if result.backend == "cuda" else "cpu"
    seed = torch.initial_seed() % 2**63
    loaded = load_task(result.source, device, result.precision, seed, python_path=[])
    build = _import_file(Path(result.kernel)).ModelNew
    module: nn.Module = build(**loaded.init) if isinstance(loaded.init, dict) else build(*loaded.init)
    module.to(device)
    load_state(module, loaded.model.state_dict() if state is None else state)
    return module


def load_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the original's parameters and buffers into a kernel's module: by name, or, where the names differ, in order.

    Raises RunError when neither fits in number and shapes; the module is then as it was.
    """
    own = module.state_dict()
    source = state if set(state) == set(own) else dict(zip(own, state.values(), strict=False))
    fits = len(state) == len(own) and all(source[name].shape == tensor.shape for name, tensor in own.items())
    if not fits:
        raise RunError(
            f"The state dict does not fit the kernel: it has {_shapes(state)}, ModelNew has {_shapes(own)}.",
            "Give a state dict of the module that the run made faster.",
            "kernel-state",
        )
    module.load_state_dict(source)


def _shapes(state: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in state.items()) or "nothing"


def _import_file(path: Path) -> ModuleType:
    name = f"htam_kernel_{path.parent.name}".replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise RunError(f"The kernel file {str(path)!r} is gone.", "Run the task again.", "no-kernel")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
