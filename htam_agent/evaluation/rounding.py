"""The reference with the inputs of matmul, convolution and attention rounded to TF32: what that precision allows.

A library takes TF32 for some shapes and float32 for others (a product with a vector); a candidate may take it for all.
So before a candidate is condemned under `tf32`, the reference is run with these inputs rounded to ten bits, to the
nearest, and once more with the lower bits cut off, as tensor cores do that are given float32 as it is. FACTOR times the
error of the first is allowed, and CUT_SHARE times that of the second, which has a bias that does not average out.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from htam_agent.errors import TaskError
from htam_agent.evaluation.policy import LIBRARY

if TYPE_CHECKING:
    import torch

    from htam_agent.evaluation.loading import Inputs
    from htam_agent.evaluation.reference_model import ReferenceModel

CUT_SHARE = 1.5
ADDENDS = {"addmm": (0,), "baddbmm": (0,), "addmv": (0,), "addbmm": (0,), "convolution": (2,), "linear": (2,)}
"""Places of arguments that are added, not multiplied: they are not rounded."""
LOW_BITS = 13
"""Bits of float32's fraction that TF32 lacks."""


def rounded_outputs(
    reference: ReferenceModel, inputs: Inputs, values: Sequence[torch.Tensor], *, cut: bool
) -> list[torch.Tensor] | None:
    """The reference's outputs with rounded products, `cut` or to the nearest; None where that cannot be run.

    State is `values` before and after.
    """
    reference.restore(values)
    try:
        with _rounding(cut):
            return reference.forward(inputs)[0]
    except TaskError:
        return None  # a task too large for one run more: the condition is then asked without this
    finally:
        reference.restore(values)


def to_tf32(tensor: torch.Tensor, *, cut: bool) -> torch.Tensor:
    """A float32 tensor with ten bits of fraction, to the nearest (ties away from zero) or towards zero."""
    import torch

    bits = tensor.contiguous().view(torch.int32)
    if not cut:
        bits = bits + (1 << (LOW_BITS - 1))
    return (bits & -(1 << LOW_BITS)).view(torch.float32)


@contextmanager
def _rounding(cut: bool) -> Iterator[None]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def dispatch(
        self: object,
        func: torch._ops.OpOverload,
        kinds: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name = str(func.overloadpacket).removeprefix("aten.")
        if name in LIBRARY:
            added = ADDENDS.get(name, ())
            args = tuple(
                to_tf32(one, cut=cut)
                if isinstance(one, torch.Tensor) and one.dtype == torch.float32 and place not in added
                else one
                for place, one in enumerate(args)
            )
        return func(*args, **(kwargs or {}))

    body: Callable[[dict[str, object]], None] = lambda names: names.update(__torch_dispatch__=dispatch)  # noqa: E731
    mode = types.new_class("Rounding", (TorchDispatchMode,), {}, body)
    with mode():
        yield
