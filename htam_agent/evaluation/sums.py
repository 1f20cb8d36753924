"""What a forward does that bears on rounding: the longest sum in it, and whether it leaves float64 by itself."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeGuard

from htam_agent.evaluation.trees import is_double, varies

if TYPE_CHECKING:
    import torch

SUMMING = ("sum", "mean", "var", "std", "norm", "dot", "pool", "loss", "cdist", "logsumexp")
"""Parts of the names of operators that add up what their outputs are smaller by."""


@dataclass
class Watched:
    """`narrow`: operators that returned floating tensors narrower than float64; `terms`: of the longest sum."""

    narrow: dict[str, None] = field(default_factory=dict)
    half: bool = False
    """Whether a narrow one was of a half type."""
    terms: int = 1


@contextmanager
def watching(watched: Watched) -> Iterator[None]:
    """Notes in `watched` what runs inside."""
    from torch.utils._python_dispatch import TorchDispatchMode

    def dispatch(
        self: object,
        func: torch._ops.OpOverload,
        kinds: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket).removeprefix("aten.")
        results = [one for one in (result if isinstance(result, list | tuple) else [result]) if _is_tensor(one)]
        if any(varies(tensor) and not is_double(tensor) for tensor in results):
            watched.narrow[name] = None
            watched.half = watched.half or any(varies(one) and dtype_bytes(one) == 2 for one in results)
        given = [one for one in args if _is_tensor(one)]
        watched.terms = max(watched.terms, terms_of(name, given, args, results))
        return result

    body: Callable[[dict[str, object]], None] = lambda names: names.update(__torch_dispatch__=dispatch)  # noqa: E731
    mode = types.new_class("Watcher", (TorchDispatchMode,), {}, body)
    with mode():
        yield


def dtype_bytes(tensor: torch.Tensor) -> int:
    """Bytes of one real number of the tensor."""
    return tensor.element_size() // (2 if tensor.is_complex() else 1)


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    import torch

    return isinstance(value, torch.Tensor)


def terms_of(name: str, given: Sequence[torch.Tensor], args: Sequence[object], results: Sequence[torch.Tensor]) -> int:
    """How many terms one number of the result of an operator is the sum of; 1 where it is no sum.

    `given` are the tensors among the arguments `args`, in order.
    """
    if not given or not results or given[0].numel() == 0:
        return 1
    first = given[0]
    if name in ("mm", "bmm", "mv", "dot"):
        return int(first.shape[-1])
    if name in ("addmm", "baddbmm", "addmv", "addbmm"):
        return int(given[1].shape[-1])
    if "convolution" in name and len(given) > 1:
        return math.prod(given[1].shape[1:])
    if "softmax" in name or name.startswith(("cumsum", "logcumsumexp")):
        axis = next((item for item in args if isinstance(item, int) and not isinstance(item, bool)), -1)
        return int(first.shape[axis]) if first.ndim else 1
    if "attention" in name and len(given) > 1:
        return max(int(first.shape[-1]), int(given[1].shape[-2]))
    if not any(part in name for part in SUMMING):
        return 1
    least = min((tensor.numel() for tensor in results if tensor.numel()), default=first.numel())
    return max(1, first.numel() // max(1, least))
