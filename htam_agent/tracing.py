"""Tracing: from a live module and its inputs to an OperatorProfile. Runs in the worker that holds the user's model.

Why make_fx on fake tensors and not torch.export: export goes through Dynamo, which refuses Python that users do write
(prints, try/except, containers of modules built in forward, calls into C extensions) and takes seconds to start. The
proxy tracer runs the forward as it is, at ATen level, on tensors that have a shape but no memory, so that an operator
on 6 GB inputs costs nothing. What it cannot do is the same for both: control flow that depends on values. That is
reported in `OperatorProfile.untraceable`.

Functionalisation removes in-place operators; a write into an input or a buffer stays visible as a trailing aten.copy_.
Conventions of the recorded graph: `target` is "aten.<name>.<overload>", or "getitem" for one result of several;
non-finite numbers in arguments are the strings "inf", "-inf" and "nan" (JSON has none); the `output` node's arguments
are its tensors, and its keywords are `layout` (tensor, tuple, list, dict, nested) and `keys`; an `input` node of a
plain Python value carries the value as its only argument and no outputs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, cast, get_args

from htam_agent.operator import Argument, Node, NodeReference, OperatorFeatures, OperatorProfile, TensorInfo
from htam_agent.tracing_cost import count_operations, operator_class, unavoidable_bytes
from htam_agent.words import DType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import fx, nn

CONSTANT_LIMIT = 16
"""Tensor constants of more elements than this are not recorded by value."""

RANDOM = {
    "bernoulli", "bernoulli_", "rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm",
    "native_dropout", "normal", "normal_", "uniform", "uniform_", "multinomial", "exponential", "rrelu_with_noise",
    "normal_functional", "rrelu_with_noise_functional", "poisson", "_fused_dropout",
}  # fmt: skip
TRANSCENDENTAL = {"exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "sigmoid", "erf", "pow", "sin", "cos"}


def trace_model(
    model: nn.Module,
    inputs: list[object] | tuple[object, ...] | dict[str, object],
    name: str,
    training: bool = True,
) -> OperatorProfile:
    """The operator that `model(*inputs)` (or `model(**inputs)` for a dict) computes, without running it on data.

    `inputs` may nest lists, tuples and dicts of tensors and plain values. The module is put into training or
    evaluation mode for the trace and back afterwards; its parameters and buffers are not touched.
    """
    tensors, values = _flatten_inputs(inputs)
    modes = {module: module.training for module in model.modules()}
    attributes = {module: dict(vars(module)) for module in model.modules()}
    model.train(training)
    try:
        return _trace(model, inputs, name, training)
    except Exception as error:  # noqa: BLE001 - the user's code ran: whatever it raised is the answer
        return _untraced(model, tensors, values, name, training, f"{type(error).__name__}: {error}")
    finally:
        for module, values_before in attributes.items():  # a forward that keeps a tensor would keep one without memory
            vars(module).clear()
            vars(module).update(values_before)
        for module, mode in modes.items():
            module.training = mode


def features_of(profile: OperatorProfile) -> OperatorFeatures:
    """The numbers that preconditions look at: from the row program if there is one, else from the largest tensor."""
    from htam_agent.coding.lowering import Unsupported, lower

    largest = max([*profile.inputs, *profile.outputs], key=lambda info: info.elements, default=None)
    dtype: DType = largest.dtype if largest else "float32"
    columns = largest.shape[-1] if largest and largest.shape else 1
    rows = (largest.elements // columns if columns else 0) if largest else 1
    reductions = sum(1 for node in profile.nodes if operator_class([node.target]) in ("reduction", "softmax"))
    transcendentals = sum(1 for node in profile.nodes if _short(node.target) in TRANSCENDENTAL)
    full_inputs = sum(1 for info in profile.inputs if largest and info.elements == largest.elements)
    try:
        program = lower(profile)
    except Unsupported:
        pass
    else:
        rows, columns, reductions = program.rows, program.columns, len(program.reductions)
        transcendentals = sum(1 for value in program.values if value.op in TRANSCENDENTAL)
        full_inputs = sum(1 for operand in program.operands if operand.is_full(program.rows))
    return OperatorFeatures(
        operator_class=profile.operator_class,
        dtype=dtype,
        rows=rows,
        columns=columns,
        row_bytes=columns * ITEM_BYTES[dtype],
        reductions=reductions,
        full_inputs=full_inputs,
        transcendentals=transcendentals,
        arithmetic_intensity=profile.operations / max(profile.unavoidable_bytes, 1),
        unavoidable_bytes=profile.unavoidable_bytes,
    )


ITEM_BYTES: dict[DType, int] = {
    "float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1, "other": 4,
}  # fmt: skip


def _trace(
    model: nn.Module, inputs: list[object] | tuple[object, ...] | dict[str, object], name: str, training: bool
) -> OperatorProfile:
    import torch
    from torch.func import functional_call, functionalize
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree as pytree

    parameters = dict(model.named_parameters())
    buffers = _persistent_buffers(model)
    tensors, values = _flatten_inputs(inputs)
    state_names, input_names = [*parameters, *buffers], list(tensors)
    keys: list[str] = []
    layout = "tensor"

    def forward(*flat: torch.Tensor) -> list[torch.Tensor]:
        nonlocal layout, keys
        state = dict(zip(state_names, flat, strict=False))
        given = dict(zip(input_names, flat[len(state_names) :], strict=True))
        filled = _fill(inputs, "", given)
        args = () if isinstance(filled, dict) else tuple(cast("Sequence[object]", filled))
        kwargs = filled if isinstance(filled, dict) else {}
        answer = functional_call(model, state, args, kwargs)
        layout, keys = _layout_of(answer)
        return [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, torch.Tensor)]

    # Detached: a tensor that is given twice must be two inputs to the tracer, which tells tensors apart by identity.
    everything = [tensor.detach() for tensor in [*parameters.values(), *buffers.values(), *tensors.values()]]
    with torch.no_grad():
        traced = make_fx(functionalize(forward, remove="mutations"), tracing_mode="fake", _allow_non_fake_inputs=True)(
            *everything
        )
    traced.graph.eliminate_dead_code()
    sources = [("parameter", key) for key in parameters] + [("buffer", key) for key in buffers]
    sources += [("input", key) for key in tensors]
    nodes, constants = _record(traced, cast("list[tuple[InputKind, str]]", sources), layout, keys)
    nodes[len(sources) : len(sources)] = [
        Node(name=f"value_{path.replace('.', '_')}", kind="input", source=path, arguments=[value])
        for path, value in values.items()
    ]
    operators = list(dict.fromkeys(_packet(node.target) for node in nodes if node.target.startswith("aten.")))
    by_name = {node.name: node for node in nodes}
    returned = [a.node for a in nodes[-1].arguments if isinstance(a, NodeReference)]
    return OperatorProfile(
        name=name,
        operator_class=operator_class(operators, nodes),
        operators=operators,
        inputs=[_info(path, tensor) for path, tensor in tensors.items()],
        parameters=[_info(key, tensor) for key, tensor in parameters.items()],
        buffers=[_info(key, tensor) for key, tensor in buffers.items()],
        outputs=[by_name[key].outputs[0] for key in returned],
        unavoidable_bytes=unavoidable_bytes(nodes, ITEM_BYTES),
        operations=count_operations(traced),
        random=any(_short(node.target) in RANDOM for node in nodes),
        training=training,
        nodes=nodes,
        constants=constants,
    )


InputKind = Literal["input", "parameter", "buffer"]


def _record(
    traced: fx.GraphModule, sources: Sequence[tuple[InputKind, str]], layout: str, keys: list[str]
) -> tuple[list[Node], dict[str, list[float]]]:
    """The fx graph as records. Placeholders come in the order of `sources`."""
    nodes: list[Node] = []
    constants: dict[str, list[float]] = {}
    pending = iter(sources)
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            kind, source = next(pending)
            nodes.append(Node(name=node.name, kind=kind, source=source, outputs=_outputs(node)))
        elif node.op == "get_attr":
            value = getattr(traced, str(node.target))
            nodes.append(Node(name=node.name, kind="constant", outputs=[_info(node.name, value)]))
            if value.numel() <= CONSTANT_LIMIT and all(math.isfinite(float(item)) for item in value.flatten().tolist()):
                constants[node.name] = [float(item) for item in value.flatten().tolist()]
        elif node.op == "output":
            arguments = [_argument(item) for item in node.args[0]]
            words: dict[str, Argument] = {"layout": layout, "keys": list(keys)}
            nodes.append(Node(name=node.name, kind="output", arguments=arguments, keywords=words))
        else:
            nodes.append(
                Node(
                    name=node.name,
                    kind="call",
                    target=_target(node),
                    arguments=[_argument(item) for item in node.args],
                    keywords={key: _argument(item) for key, item in node.kwargs.items()},
                    outputs=_outputs(node),
                )
            )
    return nodes, constants


def _target(node: fx.Node) -> str:
    return "getitem" if getattr(node.target, "__name__", "") == "getitem" else str(node.target)


def _outputs(node: fx.Node) -> list[TensorInfo]:
    import torch

    value = node.meta.get("val")
    leaves = list(value) if isinstance(value, tuple | list) else [value]
    return [_info(node.name, leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _argument(value: object) -> Argument:
    if hasattr(value, "meta") and hasattr(value, "name") and hasattr(value, "op"):
        return NodeReference(node=str(value.name))
    if isinstance(value, tuple | list):
        return [_argument(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _info(name: str, tensor: torch.Tensor) -> TensorInfo:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorInfo(
        name=name,
        shape=tuple(int(extent) for extent in tensor.shape),
        dtype=cast(DType, dtype if dtype in get_args(DType) else "other"),
        stride=tuple(int(step) for step in tensor.stride()) if tensor.layout == _strided() else (),
    )


def _strided() -> torch.layout:
    import torch

    return torch.strided


def _persistent_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that a state dict holds; the others are the model's constants."""
    held = set(model.state_dict())
    return {name: buffer for name, buffer in model.named_buffers() if name in held}


def _flatten_inputs(
    inputs: object, prefix: str = ""
) -> tuple[dict[str, torch.Tensor], dict[str, bool | int | float | str | None]]:
    """Tensors and plain values by path: "0", "1.mask", "mask"."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, bool | int | float | str | None] = {}
    for key, item in _children(inputs):
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(item, torch.Tensor):
            tensors[path] = item
        elif item is None or isinstance(item, bool | int | float | str):
            values[path] = str(item) if isinstance(item, float) and not math.isfinite(item) else item
        elif isinstance(item, list | tuple | dict):
            deeper, plain = _flatten_inputs(item, path)
            tensors.update(deeper)
            values.update(plain)
        else:
            values[path] = repr(type(item))
    return tensors, values


def _children(value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [(str(key), item) for key, item in value.items()]
    return [(str(index), item) for index, item in enumerate(cast("Sequence[object]", value))]


def _fill(value: object, path: str, tensors: Mapping[str, torch.Tensor]) -> object:
    """The same structure with the traced tensors in the places of the given ones."""
    if path in tensors:
        return tensors[path]
    prefix = f"{path}." if path else ""
    if isinstance(value, dict):
        return {key: _fill(item, f"{prefix}{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_fill(item, f"{prefix}{index}", tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return value


def _layout_of(answer: object) -> tuple[str, list[str]]:
    import torch

    if isinstance(answer, torch.Tensor):
        return "tensor", []
    if not isinstance(answer, dict | tuple | list):
        return "nested", []
    items: list[object] = list(answer.values() if isinstance(answer, dict) else answer)
    if not items or not all(isinstance(item, torch.Tensor) for item in items):
        return "nested", []
    if isinstance(answer, dict):
        return "dict", [str(key) for key in answer]
    return ("list" if isinstance(answer, list) else "tuple" if type(answer) is tuple else "nested"), []


def _untraced(
    model: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, bool | int | float | str | None],
    name: str,
    training: bool,
    reason: str,
) -> OperatorProfile:
    """What is known without a graph. Only the inputs' bytes can be counted."""
    infos = [_info(path, tensor) for path, tensor in tensors.items()]
    parameters = [_info(key, tensor) for key, tensor in model.named_parameters()]
    return OperatorProfile(
        name=name,
        operator_class="other",
        operators=[],
        inputs=infos,
        parameters=parameters,
        buffers=[_info(key, tensor) for key, tensor in _persistent_buffers(model).items()],
        outputs=[],
        unavoidable_bytes=sum(info.elements * ITEM_BYTES[info.dtype] for info in infos + parameters),
        operations=0,
        training=training,
        untraceable=" ".join(reason.split())[:2000],
    )


def _packet(target: str) -> str:
    """ "aten.add.Tensor" -> "aten.add"."""
    return ".".join(target.split(".")[:2])


def _short(target: str) -> str:
    return target.split(".")[1] if target.startswith("aten.") else target
