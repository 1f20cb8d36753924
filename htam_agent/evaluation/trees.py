"""Arguments and results of a model as plain data plus a list of tensors: the safe encoding between processes.

Nothing is pickled: containers and plain values travel as a `Tree` (JSON), tensors as bytes in shared memory that a
`TensorSpec` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from htam_agent.evaluation.channel import Letter

if TYPE_CHECKING:
    import torch

ALIGNMENT = 512
"""Bytes: every tensor starts at a multiple, as torch's CUDA allocator has it."""

PIECE = {"cpu": 1 << 16, "cuda": 1 << 24}
"""Elements of one piece: on a CPU its temporaries stay in the cache, on CUDA a piece is worth its launches."""

Kind = Literal["tensor", "value", "dtype", "list", "tuple", "dict"]
DEEPEST = 32
"""Levels of containers in a tree: JSON of more is not read by every reader."""
LARGEST = 1 << 62
"""Sizes, strides and offsets under it are added up in 64 bits; no memory is as large."""


class Tree(Letter):
    """A nested value: a container with `items` (and `keys` for a dict), a plain value, or the `index`-th tensor."""

    kind: Kind
    index: int = -1
    value: bool | int | float | str | None = None
    items: list[Tree] = Field(default_factory=list)
    keys: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(self.keys) != (len(self.items) if self.kind == "dict" else 0) or len(set(self.keys)) != len(self.keys):
            raise ValueError("a dict has one key, of its own, for each item, and nothing else has keys")
        if self.items and self.kind not in ("list", "tuple", "dict"):
            raise ValueError(f"a {self.kind} has no items")
        if (self.kind == "tensor") != (self.index >= 0):
            raise ValueError("a tensor has an index, and nothing else has one")
        if self.kind == "dtype" and not isinstance(self.value, str):
            raise ValueError("a dtype is given by its name")
        if isinstance(self.value, int) and abs(self.value) > LARGEST:
            raise ValueError("an integer is too large to be handed over")
        return self

    def indices(self, depth: int = 0) -> Iterator[int]:
        """The indices of its tensors in order. Raises ValueError where it is nested deeper than DEEPEST."""
        if depth > DEEPEST:
            raise ValueError(f"containers are nested deeper than {DEEPEST} levels")
        if self.kind == "tensor":
            yield self.index
        for item in self.items:
            yield from item.indices(depth + 1)

    def outline(self) -> str:
        """The structure in words, without values: "tuple(tensor, dict(a: tensor))"."""
        if self.kind in ("list", "tuple"):
            return f"{self.kind}({', '.join(item.outline() for item in self.items)})"
        if self.kind == "dict":
            pairs = zip(self.keys, self.items, strict=True)
            return f"dict({', '.join(f'{key}: {item.outline()}' for key, item in pairs)})"
        return "tensor" if self.kind == "tensor" else f"{self.kind} {self.value!r}"


class TensorSpec(Letter):
    """Where a tensor lies in a shared buffer: `offset` in bytes, `shape` and `stride` in elements."""

    shape: list[int]
    stride: list[int]
    dtype: str
    offset: int = 0

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if len(self.shape) != len(self.stride):
            raise ValueError(f"a shape of {len(self.shape)} extents has {len(self.stride)} strides")
        if not all(0 <= number < LARGEST for number in (*self.shape, *self.stride, self.offset)):
            raise ValueError("an extent, a stride or an offset is negative or too large")
        if self.span >= LARGEST:
            raise ValueError("it spans more than any memory holds")
        return self

    @property
    def span(self) -> int:
        """Elements from the first to the last one, gaps included; 0 for an empty tensor."""
        return span_of(self.shape, self.stride)

    def describe(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class UnsupportedValue(TypeError):
    """A value that cannot cross: the message says where it is and what it is."""


def span_of(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements between the first and the last element of a strided tensor, both included."""
    if any(extent == 0 for extent in shape):
        return 0
    return 1 + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))


def flatten(value: object, *, exact: bool = False, path: str = "") -> tuple[Tree, list[torch.Tensor]]:
    """The tree of a value and its tensors in order.

    With `exact` (what a candidate returns) a tensor must be a dense torch.Tensor itself, no subclass, with storage.
    Raises UnsupportedValue for anything that is not a tensor, a plain value or a list, tuple or dict of such.
    """
    tensors: list[torch.Tensor] = []
    return _flatten(value, tensors, exact, path or "value"), tensors


def _flatten(value: object, tensors: list[torch.Tensor], exact: bool, path: str) -> Tree:
    import torch

    if isinstance(value, torch.Tensor):
        _check_tensor(value, exact, path)
        tensors.append(value)
        return Tree(kind="tensor", index=len(tensors) - 1)
    if value is None or isinstance(value, bool | int | float | str):
        return Tree(kind="value", value=value)
    if isinstance(value, torch.dtype):
        return Tree(kind="dtype", value=dtype_name(value))
    if isinstance(value, list | tuple):
        items = [_flatten(item, tensors, exact, f"{path}[{index}]") for index, item in enumerate(value)]
        return Tree(kind="list" if isinstance(value, list) else "tuple", items=items)
    if isinstance(value, Mapping):
        keys = list(value)
        if not all(isinstance(key, str) for key in keys):
            raise UnsupportedValue(f"{path} is a dict whose keys are not all strings")
        return Tree(
            kind="dict", keys=keys, items=[_flatten(value[key], tensors, exact, f"{path}[{key!r}]") for key in keys]
        )
    raise UnsupportedValue(
        f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be handed over"
    )


def _check_tensor(value: torch.Tensor, exact: bool, path: str) -> None:
    import torch

    if exact and type(value) is not torch.Tensor:
        raise UnsupportedValue(f"{path} is a {type(value).__qualname__}, not exactly a torch.Tensor")
    if value.layout != torch.strided or value.device.type == "meta" or value.is_quantized:
        raise UnsupportedValue(f"{path} is no dense tensor with storage (layout {value.layout}, device {value.device})")
    if exact and value.untyped_storage().nbytes() < (value.storage_offset() + span_of(value.shape, value.stride())) * (
        value.element_size()
    ):
        raise UnsupportedValue(f"{path} has less storage than its shape needs")


def unflatten(tree: Tree, tensors: Sequence[torch.Tensor]) -> object:
    """The value of a tree with these tensors in place."""
    import torch

    if tree.kind == "tensor":
        return tensors[tree.index]
    if tree.kind == "value":
        return tree.value
    if tree.kind == "dtype":
        return getattr(torch, str(tree.value))
    items = [unflatten(item, tensors) for item in tree.items]
    if tree.kind == "dict":
        return dict(zip(tree.keys, items, strict=True))
    return items if tree.kind == "list" else tuple(items)


def map_tensors(value: object, function: Callable[[torch.Tensor], torch.Tensor]) -> object:
    """The same nested value with every tensor replaced by `function(tensor)`."""
    tree, tensors = flatten(value)
    return unflatten(tree, [function(tensor) for tensor in tensors])


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def specs_of(tensors: Sequence[torch.Tensor], start: int = 0) -> list[TensorSpec]:
    """Places for tensors one after the other from byte `start` on, each at a multiple of ALIGNMENT."""
    specs = []
    offset = start
    for tensor in tensors:
        spec = TensorSpec(
            shape=list(tensor.shape), stride=list(tensor.stride()), dtype=dtype_name(tensor.dtype), offset=offset
        )
        specs.append(spec)
        offset = aligned(offset + spec.span * tensor.element_size())
    return specs


def aligned(count: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def extent_of(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes that `specs_of` lays these tensors over (at least one unit, so that a buffer is never empty)."""
    return max(ALIGNMENT, sum(aligned(span_of(t.shape, t.stride()) * t.element_size()) for t in tensors))


def flat_span(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a strided tensor as a 1-D view, gaps included: copies then keep layouts and overlaps."""
    return tensor.as_strided((span_of(tensor.shape, tensor.stride()),), (1,))


def view(memory: torch.Tensor, spec: TensorSpec, shift: int = 0) -> torch.Tensor:
    """The tensor that `spec` describes inside `memory` (1-D uint8), moved by `shift` bytes. Shares memory."""
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    start = spec.offset + shift
    data = memory[start : start + spec.span * dtype.itemsize].view(dtype)
    return data.as_strided(spec.shape, spec.stride)


def varies(tensor: torch.Tensor) -> bool:
    """Whether a tensor has rounding errors: floating and complex ones."""
    return tensor.is_floating_point() or tensor.is_complex()


def is_double(tensor: torch.Tensor) -> bool:
    """Whether a tensor is float64 or complex128."""
    return tensor.element_size() == (16 if tensor.is_complex() else 8)


def pieces(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Flat pieces of tensors of one shape side by side, small enough that a handful of temporaries costs little."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    count = PIECE["cpu" if flat[0].device.type == "cpu" else "cuda"]
    for start in range(0, flat[0].numel(), count):
        yield [tensor[start : start + count] for tensor in flat]


def packed_like(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous stand-in without memory of the same shape and dtype."""
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
