"""What a traced graph must move and compute at least, and the class that its operators put it into."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from htam_agent.operator import Argument, Node, NodeReference, OperatorClass
from htam_agent.words import DType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import fx

VIEWS = {
    "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "permute", "transpose", "t", "alias", "detach",
    "slice", "select", "as_strided", "split", "split_with_sizes", "chunk", "unbind", "diagonal", "unfold", "lift_fresh",
    "getitem", "empty", "empty_like", "empty_strided", "view_as_real", "view_as_complex",
}  # fmt: skip
"""Operators that move no data."""

REDUCING = {
    "sum", "mean", "amax", "amin", "max", "min", "var", "std", "var_mean", "std_mean", "linalg_vector_norm", "norm",
    "logsumexp", "prod", "argmax", "argmin", "any", "all",
}  # fmt: skip
WEIGHTS = {
    "gelu": 5, "silu": 4, "mish": 5, "softplus": 4, "elu": 4, "hardswish": 4, "hardsigmoid": 3, "sigmoid": 3,
    "hardtanh": 2, "clamp": 2, "leaky_relu": 2, "_prelu_kernel": 2, "log_sigmoid_forward": 4, "addcmul": 2,
    "addcdiv": 2,
    "_softmax": 5, "_log_softmax": 5, "native_layer_norm": 8, "native_batch_norm": 4, "native_group_norm": 8,
    "_fused_rms_norm": 5, "var": 4, "std": 4, "logsumexp": 4, "linalg_vector_norm": 2, "_native_batch_norm_legit": 4,
    "_native_batch_norm_legit_no_training": 4, "cudnn_batch_norm": 4,
}  # fmt: skip
"""Scalar operations for each element of the operators that are more than one."""

FAMILIES: dict[str, tuple[str, ...]] = {
    "attention": ("_scaled_dot_product", "_flash_attention", "_efficient_attention"),
    "convolution": ("convolution", "cudnn_convolution", "mkldnn_convolution", "_slow_conv", "thnn_conv"),
    "matmul": ("mm", "addmm", "bmm", "baddbmm", "matmul", "mv", "addmv", "dot", "einsum", "linear", "_scaled_mm"),
    "pooling": ("max_pool", "avg_pool", "adaptive_", "_adaptive_", "fractional_max", "mkldnn_max_pool"),
    "scan": ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"),
    "loss": ("mse_loss", "nll_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "_ctc_loss", "kl_div"),
    "softmax": ("_softmax", "_log_softmax", "_safe_softmax"),
    "normalization": ("native_layer_norm", "native_batch_norm", "native_group_norm", "_fused_rms_norm",
                      "_native_batch_norm", "cudnn_batch_norm", "_batch_norm"),
}  # fmt: skip
HEAVY = ("attention", "convolution", "matmul", "pooling", "scan")


def operator_class(operators: Sequence[str], nodes: Sequence[Node] = ()) -> OperatorClass:
    """The class of the whole: the heaviest family that occurs, `composite` for two heavy ones."""
    names = {name.split(".")[1] for name in operators if name.startswith("aten.")}
    found = [family for family, members in FAMILIES.items() if any(_is_member(name, members) for name in names)]
    heavy = [family for family in found if family in HEAVY]
    if len(heavy) > 1:
        return "composite"
    first: OperatorClass | None = next((family for family in _ORDER if family in found), None)
    if first is not None:
        return first
    if names & REDUCING:
        return "normalization" if _keeps_size(nodes) else "reduction"
    return "pointwise" if names - VIEWS else "other"


_ORDER: tuple[OperatorClass, ...] = (
    "attention", "convolution", "matmul", "pooling", "scan", "loss", "softmax", "normalization",
)  # fmt: skip


def _is_member(name: str, members: tuple[str, ...]) -> bool:
    return name in members or any(len(member) > 6 and name.startswith(member) for member in members)


def _keeps_size(nodes: Sequence[Node]) -> bool:
    """True when an output is as large as the largest input: the reductions scale it rather than replace it."""
    by_name = {node.name: node for node in nodes}
    largest = max((node.outputs[0].elements for node in nodes if node.kind == "input" and node.outputs), default=0)
    returned = [by_name[ref.node] for ref in references(nodes[-1].arguments)] if nodes else []
    return any(node.outputs and node.outputs[0].elements >= largest > 1 for node in returned)


def references(arguments: Sequence[Argument]) -> Iterator[NodeReference]:
    """Every node reference, nested lists included."""
    for argument in arguments:
        if isinstance(argument, NodeReference):
            yield argument
        elif isinstance(argument, list):
            yield from references(argument)


GATHERING = {
    "index", "gather", "embedding", "_embedding_bag", "index_select", "take", "take_along_dim", "nll_loss_forward",
    "nll_loss2d_forward", "grid_sampler_2d", "grid_sampler_3d", "triu", "tril", "masked_fill", "masked_select", "where",
}  # fmt: skip
"""Operators of whose tensors (of `where`: those chosen from) any part may be left unread."""


def _surely_read(short: str, node: Node, by_name: Mapping[str, Node]) -> set[str]:
    """Names of the arguments that an operator surely reads as a whole."""
    names = [ref.node for ref in references([*node.arguments, *node.keywords.values()])]
    if short == "where":
        return set(names[:1])
    shapes = [by_name[name].outputs[0].shape if by_name[name].outputs else () for name in names]
    window: object = None
    if "convolution" in short and len(names) > 1:
        window = list(shapes[1][2:])
    elif "_pool" in short and "adaptive" not in short and len(node.arguments) > 2:
        window = node.arguments[1]
    strides = _integers(node.arguments[3 if "convolution" in short else 2]) if window is not None else []
    dilated = any(step > 1 for step in _integers(node.arguments[5])) if len(node.arguments) > 5 else False
    gaps = any(
        step > extent or (step > 1 and dilated) for step, extent in zip(strides, _integers(window), strict=False)
    )
    skips = short in GATHERING or gaps or (short.startswith(("upsample", "_upsample")) and _shrinks(node, shapes))
    return set(names[1:] if skips else names)


def _integers(value: object) -> list[int]:
    several = value if isinstance(value, list | tuple) else [value]
    return [item for item in several if isinstance(item, int)]


def _shrinks(node: Node, shapes: Sequence[Sequence[int]]) -> bool:
    return bool(shapes) and bool(node.outputs) and node.outputs[0].elements < math.prod(shapes[0])


def unavoidable_bytes(nodes: Sequence[Node], item_bytes: Mapping[DType, int]) -> int:
    """Bytes of every input, parameter, buffer and constant that a computing operator reads, once, plus every output
    that is no view of one of them, and every tensor of the caller that is overwritten (which may be the output).

    Of a tensor that is read through a slice or another view of a part, the largest such part counts; of one that an
    operator only picks from (a gather, an embedding, windows with gaps between them), nothing: it is a lower bound.
    """
    roots: dict[str, str] = {}
    read: dict[str, int] = {}
    by_name = {node.name: node for node in nodes}
    seen: dict[str, int] = {}
    written: set[str] = set()
    overwritten: set[str] = set()
    copied: set[str] = set()
    sizes: dict[str, int] = {}
    for node in nodes:
        sizes[node.name] = sum(info.elements * item_bytes[info.dtype] for info in node.outputs[:1])
        seen[node.name] = sizes[node.name]
        used = [roots[ref.node] for ref in references([*node.arguments, *node.keywords.values()]) if ref.node in roots]
        short = node.target.split(".")[1] if node.target.startswith("aten.") else node.target
        if node.kind == "output":
            written.update(used)
        elif node.kind != "call" or not used or (short not in VIEWS):
            roots[node.name] = node.name
            whole = _surely_read(short, node, by_name)
            names = [ref.node for ref in references([*node.arguments, *node.keywords.values()]) if ref.node in roots]
            for name in names[1:] if short == "copy_" else names:
                amount = seen[name] if name in whole else 0
                read[roots[name]] = max(read.get(roots[name], 0), amount)
            if short == "copy_":
                overwritten.add(used[0])
                copied.update(used[1:])
        else:
            roots[node.name] = used[0]
            first = next(references(node.arguments))
            # Of several parts (split) no single size is known; each is looked at where it is taken (getitem).
            parts = short in ("split", "split_with_sizes", "chunk", "unbind")
            seen[node.name] = seen[first.node] if parts else min(seen[first.node], sizes[node.name])
    given = {node.name for node in nodes if node.kind not in ("call", "output")}
    produced = written - given - copied
    return sum(read[key] for key in read.keys() & given) + sum(sizes[key] for key in produced | overwritten)


def count_operations(traced: fx.GraphModule) -> int:
    """Floating-point operations: 2mnk for matrix products, one for each element and scalar operation else."""
    from torch.utils.flop_counter import flop_registry

    total = 0
    for node in traced.graph.nodes:
        if node.op != "call_function" or not hasattr(node.target, "overloadpacket"):
            continue
        packet = node.target.overloadpacket
        short = packet.__name__
        value = node.meta.get("val")
        if packet in flop_registry:
            arguments = [getattr(item, "meta", {}).get("val", item) for item in node.args]
            words = {key: getattr(item, "meta", {}).get("val", item) for key, item in node.kwargs.items()}
            total += int(flop_registry[packet](*arguments, **words, out_val=value))
        elif short not in VIEWS and short not in ("clone", "_to_copy", "copy_", "copy", "full", "ones", "zeros"):
            total += WEIGHTS.get(short, 1) * _extent(node, value)
    return total


def _extent(node: fx.Node, value: object) -> int:
    """Elements that the operator walks: of its largest tensor, read or written."""
    sizes = [math.prod(getattr(leaf, "shape", ())) for leaf in (value if isinstance(value, tuple | list) else [value])]
    for item in node.all_input_nodes:
        shape = getattr(item.meta.get("val"), "shape", None)
        sizes.append(math.prod(shape) if shape is not None else 0)
    return max(sizes, default=0)
