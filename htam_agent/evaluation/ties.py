"""Equal values where a task asks for places: the index of a maximum is then not determined, and any of them is right.

Rows of zeros, as some families have, are full of them. So for a task with integer outputs each operator that finds
places is asked again on other numbers in the same order, in which equal values have been told apart at random: places
that change are not determined, and such a trial says nothing.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    import torch

FINDING = {
    "topk", "sort", "argsort", "argmax", "argmin", "max", "min", "median", "nanmedian", "kthvalue", "mode", "cummax",
    "cummin", "msort", "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d",
}  # fmt: skip
"""ATen operators that give places of values."""
ROUNDS = 2
"""Two equal values may be told apart as the reference has it, by chance."""


class Ties:
    """`operator`: one whose places were not determined, empty for none; `looked`: some gave places at all."""

    def __init__(self) -> None:
        self.operator = ""
        self.looked = False

    def look(self, func: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Runs one operator, with a look at its ties. Stable sorting has none."""
        given = args[0] if args else None
        result = func(*args, **kwargs)
        name = str(func.overloadpacket).removeprefix("aten.")
        places = _integers(result)
        if name not in FINDING or not _is_tensor(given) or not places or kwargs.get("stable"):
            return result
        self.looked = True
        for seed in range(ROUNDS if not self.operator else 0):
            others = _integers(func(told_apart(given, seed), *args[1:], **kwargs))
            if any(not ours.equal(theirs) for ours, theirs in zip(places, others, strict=True)):
                self.operator = name
        return result


def told_apart(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Float64 numbers of the same order and shape, all different: equal ones are put in a random order."""
    import torch

    _, ranks = torch.unique(tensor, return_inverse=True)
    generator = torch.Generator(tensor.device).manual_seed(seed)
    noise = torch.rand(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float64)
    apart: torch.Tensor = ranks.reshape(tensor.shape).double() + 0.5 * noise
    return apart


def has_integers(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a task gives integers, which may be places."""
    return bool(_integers(list(tensors)))


@contextmanager
def looking(ties: Ties) -> Iterator[None]:
    """Looks at each operator inside."""
    from torch.utils._python_dispatch import TorchDispatchMode

    def dispatch(
        self: object,
        func: torch._ops.OpOverload,
        kinds: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return ties.look(func, args, kwargs or {})

    body: Callable[[dict[str, object]], None] = lambda names: names.update(__torch_dispatch__=dispatch)  # noqa: E731
    mode = types.new_class("Looking", (TorchDispatchMode,), {}, body)
    with mode():
        yield


def _integers(result: object) -> list[torch.Tensor]:
    import torch

    several = result if isinstance(result, list | tuple) else [result]
    kinds = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    return [one for one in several if _is_tensor(one) and one.dtype in kinds]


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    import torch

    return isinstance(value, torch.Tensor)
