"""From a traced operator to a row program.

Two walks. Bottom up, each ATen call becomes symbolic tensors (aten.py, aten_rows.py). Top down from the outputs, each
symbolic tensor meets the iteration space: outputs are row-major, a reduction's argument runs along the columns, and
broadcasting, views and permutations only say which strides a tensor is read with (space.py). A tensor that two places
read with different strides is computed for each.

Rows and columns: a reduction fixes the columns (all reductions must be over the same trailing extent). Without one, the
longest row is taken under which every broadcast operand is expressible; without broadcasting all elements are one row,
which suits flat kernels of both backends.

Storage types: casts between floating types change nothing, since values stay in float32 until the store; the rounding
that PyTorch does between two half-precision operators is therefore not reproduced, and results are closer to exact.
"""

from __future__ import annotations

import re
from typing import Literal

from htam_agent.coding.aten import POINTWISE, SHAPES
from htam_agent.coding.aten_rows import ROWS
from htam_agent.coding.call import Call, Given
from htam_agent.coding.emit import Emitter
from htam_agent.coding.program import Output, RowProgram, Space
from htam_agent.coding.space import best_columns, contiguous
from htam_agent.coding.tensors import Tensor, Unsupported, constant, expand
from htam_agent.operator import Argument, Node, NodeReference, OperatorProfile

__all__ = ["Unsupported", "lower"]

MEANINGS = {**POINTWISE, **SHAPES, **ROWS}
STORAGE = ("float32", "float16", "bfloat16", "float64", "bool")
"""Types of operands and outputs; bool is one byte, 0 or 1."""

Layout = Literal["tensor", "tuple", "list", "dict"]
LAYOUTS: dict[str, Layout] = {"tensor": "tensor", "tuple": "tuple", "list": "list", "dict": "dict"}


def lower(profile: OperatorProfile) -> RowProgram:
    """The row program of a traced operator.

    Raises Unsupported, which names the ATen operator and says why.
    """
    if profile.untraceable is not None:
        raise Unsupported(profile.name, f"it could not be traced ({profile.untraceable})")
    symbols: dict[str, Tensor | list[Tensor | None]] = {}
    for node in profile.nodes:
        if node.kind == "output":
            try:
                return _assemble(profile, node, symbols)
            except RecursionError:
                raise Unsupported(profile.name, "its graph is too deep") from None
        _add_symbol(profile, node, symbols)
    raise Unsupported(profile.name, "its graph has no output")


def _add_symbol(profile: OperatorProfile, node: Node, symbols: dict[str, Tensor | list[Tensor | None]]) -> None:
    if node.kind == "constant":
        symbols[node.name] = _constant(profile, node)
    elif node.kind == "call":
        symbols[node.name] = _picked(profile, node, symbols) if node.target == "getitem" else _called(node, symbols)
        # An operator in place that functionalisation left: later readers of its first argument see the result.
        if re.fullmatch(r"aten\.\w*[a-z]_\..*", node.target) and isinstance(node.arguments[0], NodeReference):
            symbols[node.arguments[0].node] = symbols[node.name]
    elif node.outputs:
        info = node.outputs[0]
        symbols[node.name] = Tensor("leaf", info.shape, source=f"{node.kind}:{node.source}", dtype=info.dtype)


def _constant(profile: OperatorProfile, node: Node) -> Tensor:
    values = profile.constants.get(node.name)
    if not values:
        raise Unsupported("constant", "a tensor constant is not recorded by value (register it as a buffer)")
    if len(set(values)) != 1:
        raise Unsupported("constant", "a tensor constant holds several values (register it as a buffer)")
    return expand(constant(values[0]), node.outputs[0].shape)


def _called(node: Node, symbols: dict[str, Tensor | list[Tensor | None]]) -> Tensor | list[Tensor | None]:
    operator = ".".join(node.target.split(".")[:2])
    name = operator.partition(".")[2]
    if name == "copy_":
        raise Unsupported("aten.copy_", "forward writes into one of its inputs or buffers")
    meaning = MEANINGS.get(name) or MEANINGS.get(name.removesuffix("_"))
    if meaning is None:
        raise Unsupported(operator, "it is no row operator of the template coder")
    if node.outputs and node.outputs[0].dtype not in STORAGE:
        raise Unsupported(operator, f"it computes in {node.outputs[0].dtype}")
    call = Call(
        operator=operator,
        arguments=[_resolve(item, symbols, operator) for item in node.arguments],
        keywords={key: _resolve(item, symbols, operator) for key, item in node.keywords.items()},
        shape=node.outputs[0].shape if node.outputs else (),
    )
    return meaning(call)


def _picked(profile: OperatorProfile, node: Node, symbols: dict[str, Tensor | list[Tensor | None]]) -> Tensor:
    source, index = node.arguments
    several = symbols[source.node] if isinstance(source, NodeReference) else None
    if not isinstance(several, list) or not isinstance(index, int):
        raise Unsupported("getitem", "it indexes something that is not a tuple of results")
    chosen = several[index] if index < len(several) else None
    if chosen is None:
        target = next(item.target for item in profile.nodes if NodeReference(node=item.name) == source)
        raise Unsupported(".".join(target.split(".")[:2]), f"its result {index} (indices or a mask) is not computed")
    return chosen


def _resolve(item: Argument, symbols: dict[str, Tensor | list[Tensor | None]], operator: str) -> Given:
    if isinstance(item, list):
        return [_resolve(inner, symbols, operator) for inner in item]
    if not isinstance(item, NodeReference):
        return item
    symbol = symbols[item.node]
    if isinstance(symbol, list):
        raise Unsupported(operator, "it reads several results at once")
    return symbol


def _assemble(profile: OperatorProfile, node: Node, symbols: dict[str, Tensor | list[Tensor | None]]) -> RowProgram:
    layout = LAYOUTS.get(str(node.keywords.get("layout")))
    if layout is None:
        raise Unsupported("output", "forward returns a nested structure or something other than tensors")
    results = [_resolve(item, symbols, "output") for item in node.arguments]
    tensors = [item for item in results if isinstance(item, Tensor)]
    reachable = _reachable(tensors)
    _check_storage(reachable)
    total = max(tensor.elements for tensor in reachable)
    columns = _reduced_columns(reachable)
    if min(tensor.elements for tensor in reachable) == 0:
        raise Unsupported("output", "a tensor is empty")
    emitter = Emitter(columns)
    placed = [_place(tensor, total, columns, emitter) for tensor in tensors]
    if columns is None:
        columns = best_columns(total, emitter.operand_runs())
    if columns is None or total % columns:
        raise Unsupported("broadcasting", "the operands cannot be indexed by rows and columns")
    rows = total // columns
    operands, values = emitter.finish(columns)
    infos = profile.outputs
    keys = node.keywords.get("keys")
    return RowProgram(
        rows=rows,
        columns=columns,
        operands=operands,
        values=values,
        outputs=[
            Output(name=f"y{index}", value=value, space=space, dtype=info.dtype, shape=info.shape)
            for index, ((value, space), info) in enumerate(zip(placed, infos, strict=True))
        ],
        layout=layout,
        keys=[str(key) for key in keys] if isinstance(keys, list) else [],
        inputs=[item.source for item in profile.nodes if item.kind == "input"],
        scalars={
            item.source: item.arguments[0]
            for item in profile.nodes
            if item.kind == "input" and not item.outputs and not isinstance(item.arguments[0], NodeReference | list)
        },
    )


def _place(tensor: Tensor, total: int, columns: int | None, emitter: Emitter) -> tuple[str, Space]:
    """The value that an output stores, and its space."""
    if tensor.elements == total:
        return emitter.output(tensor, contiguous(tensor.shape)), "element"
    if columns is not None and tensor.elements * columns == total:
        return emitter.output(tensor, contiguous(tensor.shape, columns)), "row"
    shape = list(tensor.shape)
    raise Unsupported("output", f"an output of shape {shape} is neither of the whole size nor one value for each row")


def _reachable(tensors: list[Tensor]) -> list[Tensor]:
    seen: dict[int, Tensor] = {}
    pending = list(tensors)
    while pending:
        tensor = pending.pop()
        if id(tensor) not in seen:
            seen[id(tensor)] = tensor
            pending.extend(tensor.arguments)
    return list(seen.values())


def _check_storage(tensors: list[Tensor]) -> None:
    for tensor in tensors:
        if tensor.kind == "leaf" and tensor.dtype not in STORAGE:
            raise Unsupported("input", f"{tensor.source} is of type {tensor.dtype}")


def _reduced_columns(tensors: list[Tensor]) -> int | None:
    extents = {tensor.arguments[0].elements // max(tensor.elements, 1) for tensor in tensors if tensor.kind == "reduce"}
    if len(extents) > 1:
        raise Unsupported("reduction", f"it reduces over several extents ({sorted(extents)})")
    return extents.pop() if extents else None
