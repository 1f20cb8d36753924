"""What a candidate may call: checks on its syntax tree before it runs, and on the operators that ran.

Both are evidence in the sense of the threat model: they find a model that falls back to torch, not a determined
attacker. `own-kernels-only` leaves torch for allocation, views and copies; `library-allowed` adds matmul, convolution
and attention. A file without any kernel of its own is refused under both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from htam_agent.evaluation.reachable import Reachable
from htam_agent.operator import OperatorProfile
from htam_agent.syntax import parse
from htam_agent.words import Backend, Policy, Record, Stage

SOURCE_CONSTANTS: dict[Backend, str] = {"cuda": "CUDA_SRC", "cpp": "CPP_SRC"}
SELF_BUILDING = {"load_inline", "load", "jit", "RawKernel", "RawModule", "NVRTCCompiler", "cuda_compile"}
"""Calls and decorators by which a file builds kernels itself: torch's load_inline, Triton's jit, CuPy's RawKernel."""
SOURCE_LIMIT = 2 << 20

LIBRARY = {
    "mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "dot", "vdot", "mv", "addmv", "addbmm", "einsum", "inner",
    "outer", "tensordot", "bilinear", "convolution", "_convolution", "cudnn_convolution",
    "cudnn_convolution_transpose", "mkldnn_convolution", "mkldnn_linear", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math", "_flash_attention_forward", "_efficient_attention_forward",
    "convolution_overrideable", "_slow_conv2d_forward", "slow_conv3d_forward", "_scaled_mm", "thnn_conv2d",
    "slow_conv_transpose2d", "slow_conv_transpose3d", "mkldnn_rnn_layer",
}  # fmt: skip
"""ATen names of matmul, convolution and attention."""

MOVING = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros",
    "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "fill", "fill_", "zero_", "scalar_tensor",
    "tensor", "arange", "view", "_unsafe_view", "view_as", "reshape", "_reshape_alias", "as_strided", "as_strided_",
    "transpose", "t", "permute", "movedim", "swapaxes", "expand", "expand_as", "broadcast_to", "unsqueeze",
    "squeeze", "flatten", "unflatten", "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "narrow",
    "unfold", "diagonal", "detach", "detach_", "alias", "clone", "contiguous", "copy_", "_to_copy", "to", "cat",
    "stack", "lift_fresh", "lift", "_local_scalar_dense", "item", "set_", "resize_", "record_stream", "is_pinned",
    "numel", "size", "stride", "is_contiguous", "data_ptr", "element_size", "view_as_real", "view_as_complex",
    "device", "is_same_size", "pin_memory", "_pin_memory", "unsafe_split", "select_scatter", "slice_scatter",
    "as_tensor", "from_numpy", "frombuffer", "is_tensor", "is_grad_enabled", "no_grad", "inference_mode",
    "get_num_threads", "Size", "promote_types", "result_type", "is_floating_point", "finfo", "iinfo", "dim",
    "equal_size", "dtype", "set_num_threads", "compiler", "jit", "set_grad_enabled", "enable_grad",
    "broadcast_tensors", "broadcast_shapes", "atleast_1d", "atleast_2d", "ravel", "squeeze_", "unsqueeze_",
    "transpose_", "get_default_dtype", "manual_seed", "get_device_module", "is_nonzero", "dispatch", "sym_size",
    "sym_numel", "sym_stride", "_assert_async", "is_inference",
}  # fmt: skip
"""Allocation, views and copies."""


OF_TORCH = {
    "torch", "aten", "prims", "mkldnn", "mkldnn_prepacked", "onednn", "quantized", "_quantized", "quantized_decomposed",
    "xnnpack", "prepacked", "sparse", "static_runtime", "inductor", "torch_attn", "fsdp", "c10d", "c10d_functional",
    "_c10d_functional", "higher_order", "rngprims", "debugprims", "nvprims", "mkl", "cudnn", "flash_attn", "vision",
    "torchvision", "torchao", "symm_mem", "flex_lib", "_nnapi", "_dtensor", "onnx", "onnx_symbolic", "fbgemm",
    "torch_sparse", "torch_scatter", "xformers", "metal", "mps", "vulkan", "tensorexpr",
}  # fmt: skip
"""Namespaces of operators that come with torch or a library beside it."""
NOT_COMPUTING = {"profiler", "prim"}
COMPUTING_PACKAGES = {"numpy", "scipy", "numexpr", "pandas", "jax", "sklearn"}


class Inspection(Record):
    """What a candidate's text says. `reason` is empty when it may be built; then `source` is the kernel source, or
    empty for a file that builds itself."""

    reason: str = ""
    stage: Stage = "load"
    source: str = ""
    deferred: bool = False


def default_policy(operator: OperatorProfile) -> Policy:
    """library-allowed for an operator with a matmul, convolution or attention in it, else own-kernels-only."""
    names = {name.removeprefix("aten.") for name in operator.operators}
    library = operator.operator_class in ("matmul", "convolution", "attention") or bool(names & LIBRARY)
    return "library-allowed" if library or operator.untraceable else "own-kernels-only"


def inspect_source(text: str, backend: Backend, policy: Policy) -> Inspection:
    """Reads a candidate's text without running it."""
    try:
        tree = parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        return Inspection(
            reason=f"the file does not parse: {error}" + (f" (line {line})" if line and not str(error) else "")
        )
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    model = classes.get("ModelNew")
    if model is None and not _binds(tree, "ModelNew"):
        return Inspection(reason="the file defines no class ModelNew")
    if model is not None and not _has_forward(model, classes):
        return Inspection(reason="ModelNew has no forward of its own: it would run the reference's", stage="policy")
    inspection = _kernel_source(tree, backend)
    if inspection.reason:
        return inspection
    called = _forbidden_call(tree, policy) or (_other_library(tree) if policy == "own-kernels-only" else "")
    return inspection.model_copy(update={"reason": called, "stage": "policy"}) if called else inspection


def forbidden_operators(operators: Sequence[str], policy: Policy, own: Sequence[str]) -> list[str]:
    """Names among the operators that ran ("aten.relu") which the policy does not leave to torch.

    `own`: namespaces that the candidate registered itself. Those of torch are never a candidate's, however late torch
    registers them.
    """
    forbidden = []
    for operator in operators:
        space, _, name = operator.partition(".")
        mine = space in NOT_COMPUTING or (space in own and space not in OF_TORCH)
        if not mine and not (space == "aten" and _allowed(name, policy)):
            forbidden.append(operator)
    return forbidden


def forbidden_recorded(recorded: Sequence[str], policy: Policy, own: Sequence[str]) -> list[str]:
    """The same for what the recorder saw, "mine.op > aten.mul" (see watching.py): an allowed operator may call whatever
    it likes, a candidate's own may not. Computing packages are nobody's under own-kernels-only."""
    forbidden: dict[str, None] = {}
    for path in recorded:
        for operator in path.split(" > "):
            space = operator.partition(".")[0]
            if space in COMPUTING_PACKAGES:
                forbidden.update({operator: None} if policy == "own-kernels-only" else {})
            elif forbidden_operators([operator], policy, own):
                forbidden[operator] = None
            elif space not in own or space in OF_TORCH:
                break
            else:
                continue
            break
    return list(forbidden)


def library_operators(operators: Sequence[str]) -> list[str]:
    """Those among "aten.mm", "mine.op" ... that are matmul, convolution or attention: what precision flags act on."""
    return [operator for operator in operators if operator.removeprefix("aten.") in LIBRARY]


def _allowed(name: str, policy: Policy) -> bool:
    return name in MOVING or (policy == "library-allowed" and name in LIBRARY)


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether an assignment or import at the top level binds `name`."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
            return True
        if isinstance(node, ast.Assign | ast.If | ast.Try | ast.With) and any(
            (isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Store))
            or (isinstance(part, ast.ClassDef) and part.name == name)
            for part in ast.walk(node)
        ):
            return True
    return False


def _has_forward(model: ast.ClassDef, classes: dict[str, ast.ClassDef], depth: int = 0) -> bool:
    """Whether ModelNew, or a base in the same file that is not Model, defines forward (or __call__)."""
    bound = {
        target.id
        for node in model.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    bound |= {node.name for node in model.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if bound & {"forward", "__call__"}:
        return True
    bases = [base.id for base in model.bases if isinstance(base, ast.Name) and base.id != "Model"]
    return depth < 8 and any(_has_forward(classes[base], classes, depth + 1) for base in bases if base in classes)


def _kernel_source(tree: ast.Module, backend: Backend) -> Inspection:
    constants = dict(_text_constants(tree))
    wanted = SOURCE_CONSTANTS[backend]
    if wanted in constants:
        return Inspection(source=constants[wanted])
    if any(_is_assigned(tree, wanted)) or any(_builds_itself(tree)):
        return Inspection(deferred=True)
    others = [name for name in SOURCE_CONSTANTS.values() if name in constants]
    if others:
        return Inspection(
            reason=f"the file has {others[0]}, and the backend {backend} builds {wanted}", stage="compile"
        )
    return Inspection(
        reason=f"the file has no kernel of its own: no {wanted}, and nothing that builds one (load_inline, triton.jit)",
        stage="policy",
    )


def _text_constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield target.id, value.value


def _is_assigned(tree: ast.Module, name: str) -> Iterator[bool]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            yield True


def _builds_itself(tree: ast.Module) -> Iterator[bool]:
    for node in ast.walk(tree):
        names: Iterable[ast.expr] = ()
        if isinstance(node, ast.Call):
            names = (node.func,)
        elif isinstance(node, ast.FunctionDef):
            names = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
        for name in names:
            if _last_name(name) in SELF_BUILDING and _first_name(name) not in ("json", "pickle", "yaml"):
                yield True


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _first_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _forbidden_call(tree: ast.Module, policy: Policy) -> str:
    """A call of torch's functional operators outside the policy: `torch.x(...)`, `F.x(...)`; empty for none.

    Methods of tensors and operators such as `@` are seen when they run (forbidden_operators).
    """
    functional = {"torch.nn.functional"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            functional |= {a.asname for a in node.names if a.name == "torch.nn.functional" and a.asname}
        if isinstance(node, ast.ImportFrom) and node.module == "torch.nn":
            functional |= {a.asname or a.name for a in node.names if a.name == "functional"}
    for function in Reachable(tree).forwards:
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner, name = ast.unparse(node.func.value), node.func.attr
            computes = owner in functional or (owner == "torch" and name in COMPUTING)
            if computes and not _allowed(name, policy):
                return f"forward calls {owner}.{name} (line {node.lineno}), which the policy {policy} forbids"
    return ""


def _other_library(tree: ast.Module) -> str:
    """A computation by another library than torch that forward can come to, on the processor; empty for none. An import
    alone computes nothing."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {(a.asname or a.name).partition(".")[0]: a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            aliases |= {a.asname or a.name: node.module for a in node.names}
    computing = {name: of for name, of in aliases.items() if of.partition(".")[0] in COMPUTING_PACKAGES}
    for part in Reachable(tree).parts:
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "numpy":
                what = f"forward takes tensors to numpy (line {node.lineno})"
                return f"{what}, which the policy own-kernels-only forbids"
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in computing:
                what = f"forward uses {computing[node.id]} (line {node.lineno})"
                return f"{what}, which the policy own-kernels-only forbids"
    return ""


COMPUTING = LIBRARY | {
    "softmax", "log_softmax", "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "pow", "sum", "mean", "max",
    "min", "amax", "amin", "var", "std", "norm", "cumsum", "cumprod", "clamp", "add", "sub", "mul", "div", "abs",
    "erf", "where", "layer_norm", "batch_norm", "group_norm", "dropout", "argmax", "argmin", "prod", "logsumexp",
    "maximum", "minimum", "sort", "topk", "gelu", "silu", "var_mean", "std_mean", "addcmul", "addcdiv", "compile",
}  # fmt: skip
"""Functions directly under torch that compute. Others (torch.ops.x, torch.cuda.x) are not judged by name."""
