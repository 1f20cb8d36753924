"""The top-down walk of lowering: symbolic tensors with known strides become instructions in single assignment."""

from __future__ import annotations

from dataclasses import dataclass

from htam_agent.coding.program import Constant, Op, Operand, Space, Use, Value
from htam_agent.coding.space import Run, reshaped, runs_of, split
from htam_agent.coding.tensors import Tensor, Unsupported
from htam_agent.words import DType

Strides = tuple[int, ...]


@dataclass(frozen=True)
class _Read:
    """An operand before rows and columns are known."""

    name: str
    source: str
    dtype: DType
    shape: tuple[int, ...]
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class _Instruction:
    name: str
    op: Op
    arguments: tuple[Use | Constant, ...]


class Emitter:
    """Collects operands and instructions. `columns` is None for programs without reductions, until `finish`."""

    def __init__(self, columns: int | None) -> None:
        self._columns = columns
        self._reads: dict[tuple[str, tuple[Run, ...]], _Read] = {}
        self._sources: dict[str, int] = {}
        self._instructions: dict[tuple[Op, tuple[Use | Constant, ...]], _Instruction] = {}
        self._done: dict[tuple[int, Strides], Use | Constant] = {}
        self._kept: list[Tensor] = []

    def output(self, tensor: Tensor, strides: Strides) -> str:
        """The name of the value that an output with these strides stores (a bare constant becomes a value)."""
        result = self._emit(tensor, strides)
        if isinstance(result, Constant):
            result = self._add("add", (result, Constant(value=0.0)))
        return result.name

    def operand_runs(self) -> list[tuple[Run, ...]]:
        """The runs of every operand read so far."""
        return [read.runs for read in self._reads.values()]

    def finish(self, columns: int) -> tuple[list[Operand], list[Value]]:
        """Operands and values for rows of `columns` elements."""
        operands: list[Operand] = []
        spaces: dict[str, Space] = {}
        for read in self._reads.values():
            place = split(read.runs, columns)
            if place is None:
                shape = list(read.shape)
                raise Unsupported("broadcasting", f"{read.source} of shape {shape} cannot be indexed by rows")
            divisor, modulus, has_columns = place
            spaces[read.name] = "element" if has_columns else "row" if modulus > 1 else "scalar"
            operands.append(
                Operand(
                    name=read.name,
                    source=read.source,
                    dtype=read.dtype,
                    shape=read.shape,
                    divisor=divisor,
                    modulus=modulus,
                    has_columns=has_columns,
                )
            )
        values: list[Value] = []
        for item in self._instructions.values():
            space = _space_of(item, spaces)
            spaces[item.name] = space
            values.append(Value(name=item.name, op=item.op, arguments=list(item.arguments), space=space))
        return operands, values

    def _emit(self, tensor: Tensor, strides: Strides) -> Use | Constant:
        strides = tuple(0 if extent == 1 else step for extent, step in zip(tensor.shape, strides, strict=True))
        key = (id(tensor), strides)
        if key not in self._done:
            self._kept.append(tensor)  # ids are keys: the tensor must outlive them
            self._done[key] = self._compute(tensor, strides)
        return self._done[key]

    def _compute(self, tensor: Tensor, strides: Strides) -> Use | Constant:
        if tensor.kind == "constant":
            return Constant(value=tensor.value)
        if tensor.kind == "leaf":
            return self._read(tensor, strides)
        if tensor.kind == "op" and tensor.op is not None:
            arguments = tuple(self._emit(item, _aligned(item.shape, strides)) for item in tensor.arguments)
            return self._add(tensor.op, arguments)
        inner = tensor.arguments[0]
        if tensor.kind == "expand":
            return self._emit(inner, _aligned(inner.shape, strides))
        if tensor.kind == "permute":
            order = [tensor.dimensions.index(place) for place in range(len(strides))]
            return self._emit(inner, tuple(strides[place] for place in order))
        if tensor.kind == "view":
            return self._viewed(tensor, inner, strides)
        return self._reduced(tensor, inner, strides)

    def _viewed(self, tensor: Tensor, inner: Tensor, strides: Strides) -> Use | Constant:
        """A view of the row-major elements; an expanded or permuted tensor cannot always be seen so."""
        answer = reshaped(tensor.shape, strides, inner.shape)
        if answer is None:
            raise Unsupported(
                "aten.view", f"from {list(inner.shape)} to {list(tensor.shape)} is not free of layout changes here"
            )
        return self._emit(inner, answer)

    def _reduced(self, tensor: Tensor, inner: Tensor, strides: Strides) -> Use | Constant:
        columns = self._columns
        if columns is None or tensor.op is None:
            raise Unsupported("reduction", "the row length is not known")
        if any(step % columns for step in strides):
            raise Unsupported("reduction", f"it is not over the last dimensions of {list(inner.shape)}")
        answer = list(strides)
        step = 1
        for place in reversed(tensor.dimensions):
            if inner.shape[place] > 1:
                answer[place] = step
                step *= inner.shape[place]
        argument = self._emit(inner, tuple(answer))
        return self._add(tensor.op, (argument,))

    def _read(self, tensor: Tensor, strides: Strides) -> Use:
        runs = runs_of(tensor.shape, strides)
        if runs is None:
            raise Unsupported(
                "aten.permute",
                f"{tensor.source} of shape {list(tensor.shape)} is read in another order "
                "(a dimension other than the last is reduced or moved)",
            )
        key = (tensor.source, runs)
        if key not in self._reads:
            name = self._name(tensor.source)
            self._reads[key] = _Read(name, tensor.source, tensor.dtype, tensor.shape, runs)
        return Use(name=self._reads[key].name)

    def _name(self, source: str) -> str:
        letter = {"input": "x", "parameter": "p"}.get(source.partition(":")[0], "b")
        count = self._sources.get(letter, 0)
        self._sources[letter] = count + 1
        return f"{letter}{count}"

    def _add(self, op: Op, arguments: tuple[Use | Constant, ...]) -> Use:
        key = (op, arguments)
        if key not in self._instructions:
            self._instructions[key] = _Instruction(f"v{len(self._instructions)}", op, arguments)
        return Use(name=self._instructions[key].name)


def _space_of(item: _Instruction, spaces: dict[str, Space]) -> Space:
    used = {spaces[argument.name] for argument in item.arguments if isinstance(argument, Use)}
    if item.op.startswith("reduce_"):
        return "row"
    return "element" if "element" in used else "row" if "row" in used else "scalar"


def _aligned(shape: tuple[int, ...], strides: Strides) -> Strides:
    """The strides of an argument of `shape` that is broadcast to a result with `strides`."""
    return strides[len(strides) - len(shape) :] if shape else ()
