"""What is known of a task's operator after tracing: plain data that crosses processes as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from typing_extensions import TypeAliasType

from htam_agent.words import DType, Record


class TensorInfo(Record):
    """One tensor: `shape` and `stride` in elements, `dtype` as torch names it."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    stride: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements (1 for a 0-d tensor)."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total


class NodeReference(Record):
    """An argument that is the value of another node."""

    node: str


Argument = TypeAliasType("Argument", "bool | int | float | str | NodeReference | list[Argument] | None")
"""An operator's argument as JSON: dtypes, devices and memory formats appear as their strings."""


class Node(Record):
    """One node of the traced ATen graph, in execution order.

    `target` is the ATen overload ("aten.add.Tensor") of a call, or empty. `outputs` holds one TensorInfo for each
    tensor that the node returns (several for aten.native_layer_norm, for example).
    """

    name: str
    kind: Literal["input", "parameter", "buffer", "constant", "call", "output"]
    target: str = ""
    arguments: list[Argument] = Field(default_factory=list)
    keywords: dict[str, Argument] = Field(default_factory=dict)
    outputs: list[TensorInfo] = Field(default_factory=list)
    source: str = ""
    """For an input its argument path ("0", "1.mask"), for a parameter or buffer its state-dict name."""


OperatorClass = Literal[
    "pointwise", "reduction", "softmax", "normalization", "matmul", "convolution", "attention",
    "pooling", "scan", "loss", "composite", "other",
]  # fmt: skip


class OperatorProfile(Record):
    """The traced operator: what it does and what it must move and compute at least.

    `unavoidable_bytes`: every input and parameter that is read, read once, plus every output, written once.
    `operations`: floating-point operations of the traced graph (one for each element and scalar operation, 2mnk for
    matmul; exp, tanh and the like count as one).
    """

    name: str
    operator_class: OperatorClass
    operators: list[str]
    """ATen operator names in order, without repeats, e.g. ["aten.add", "aten.native_layer_norm", "aten.gelu"]."""
    inputs: list[TensorInfo]
    parameters: list[TensorInfo]
    buffers: list[TensorInfo] = Field(default_factory=list)
    outputs: list[TensorInfo]
    unavoidable_bytes: int
    operations: int
    random: bool = False
    """True when the graph draws random numbers (dropout in training mode, for example)."""
    training: bool = True
    nodes: list[Node] = Field(default_factory=list)
    constants: dict[str, list[float]] = Field(default_factory=dict)
    """Values of small tensor constants that the graph reads (at most 16 elements each)."""
    untraceable: str | None = None
    """Why the graph could not be traced; then `nodes` is empty and only tensors are known."""


class OperatorFeatures(Record):
    """The few numbers that preconditions and similarity look at; derived from OperatorProfile by `features_of`."""

    operator_class: OperatorClass
    dtype: DType
    rows: int
    columns: int
    """Length of the last-dimension (row) extent over which reductions run; for pointwise all elements are one row."""
    row_bytes: int
    reductions: int
    full_inputs: int
    """Number of inputs of the full iteration space (not broadcast)."""
    transcendentals: int
    """Number of exp, log, tanh, erf, pow and sigmoid nodes."""
    arithmetic_intensity: float
    """Operations per unavoidable byte."""
    unavoidable_bytes: int
