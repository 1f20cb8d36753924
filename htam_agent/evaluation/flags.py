"""Precision flags of torch, set in one place for the reference, its timed variants and the candidate."""

from __future__ import annotations

from htam_agent.evaluation.messages import Variant
from htam_agent.words import Precision


def set_tf32(matmul: bool, cudnn: bool) -> None:
    """Allows or forbids TF32 in matmul and in cuDNN, for this process.

    The older switches are used on purpose: torch 2.9 to 2.13 all have them, and torch.compile reads them and raises
    where the newer `fp32_precision` was set as well.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = matmul
    torch.backends.cudnn.allow_tf32 = cudnn


def read_tf32() -> tuple[bool, bool]:
    """What is allowed in matmul and in cuDNN now; PyTorch's defaults where the newer switches hide the older ones."""
    import torch

    try:
        return bool(torch.backends.cuda.matmul.allow_tf32), bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return False, True


def set_judging() -> None:
    """Full float32 for expected outputs."""
    set_tf32(False, False)


def set_defaults() -> None:
    """PyTorch's own defaults: TF32 in cuDNN only."""
    set_tf32(False, True)


def set_declared(precision: Precision) -> None:
    """What a candidate runs under at this precision."""
    set_tf32(precision == "tf32", precision == "tf32")


def set_variant(variant: Variant, precision: Precision) -> None:
    """What an opponent is timed under. `ieee` turns TF32 off for everybody."""
    if precision == "ieee":
        set_judging()
    elif variant == "eager":
        set_defaults()
    elif variant == "eager_tf32":
        set_tf32(True, True)
    else:
        set_declared(precision)
