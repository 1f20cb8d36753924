"""What the prompts see: plain values made from a request."""

from __future__ import annotations

from htam_agent.coding.assembly import LAUNCHER_NAME, without_launcher
from htam_agent.coding.base import BestSoFar, CodeRequest, RepairRequest
from htam_agent.coding.parsing import SOURCE_CONSTANT
from htam_agent.memory.model import ScoredStrategy
from htam_agent.operator import Argument, NodeReference, OperatorProfile, TensorInfo

TIME_WORDS = {
    "candidate": "this kernel",
    "eager": "PyTorch eager",
    "eager_tf32": "eager with TF32",
    "compile": "torch.compile",
    "best": "the baseline to beat",
}
SHOWN_STRATEGIES = 6
BLOCK_CHARACTERS = 2500
GRAPH_NODES = 80
EVIDENCE_CHARACTERS = 6000


def common_values(request: CodeRequest) -> dict[str, object]:
    """Variables of every prompt."""
    return {
        "backend": request.backend,
        "constant": SOURCE_CONSTANT[request.backend],
        "launcher_name": LAUNCHER_NAME[request.backend],
        "architecture": request.device.architecture,
    }


def generate_values(request: CodeRequest) -> dict[str, object]:
    """Variables of generate.md."""
    operator = request.operator
    return {
        **common_values(request),
        "task_source": request.task_source,
        "operator": {
            "name": operator.name,
            "operator_class": operator.operator_class,
            "operators": operator.operators,
            "inputs": [tensor_words(tensor, prefix="input ") for tensor in operator.inputs],
            "parameters": [tensor_words(tensor) for tensor in operator.parameters],
            "buffers": [tensor_words(tensor) for tensor in operator.buffers],
            "outputs": [tensor_words(tensor) for tensor in operator.outputs],
            "unavoidable_bytes": operator.unavoidable_bytes,
            "operations": operator.operations,
            "training": operator.training,
            "random": operator.random,
            "untraceable": operator.untraceable or "",
        },
        "graph": graph_words(operator),
        "device": request.device.model_dump(mode="json"),
        "ceilings": _ceilings(request),
        "floor_ms": _floor(request),
        "precision": request.precision,
        "policy": request.policy,
        "direction": request.direction.model_dump(mode="json") if request.direction else None,
        "direction_why": request.direction_why,
        "strategies": [_strategy(scored) for scored in request.strategies[:SHOWN_STRATEGIES]],
        "best": _best(request.best, request),
        "history": request.history,
        "step": request.step,
        "index": request.index,
    }


def repair_values(request: RepairRequest) -> dict[str, object]:
    """Variables of repair.md."""
    failure = request.failure
    return {
        **common_values(request.request),
        "kind": failure.kind,
        "stage": failure.stage,
        "reason": failure.reason,
        "evidence": failure.evidence[:EVIDENCE_CHARACTERS],
        "attempt": request.attempt,
        "tried": request.tried,
        "problem": "",
    }


def no_file_values(request: CodeRequest, problem: str, attempt: int) -> dict[str, object]:
    """Variables of repair.md after an answer without a usable file."""
    return {
        **common_values(request),
        "kind": "answer",
        "stage": "",
        "reason": "",
        "evidence": "",
        "attempt": attempt,
        "tried": [],
        "problem": problem,
    }


def tensor_words(tensor: TensorInfo, prefix: str = "") -> str:
    """`scale: float32 [512, 1024]`, with the strides where they are not those of a contiguous tensor."""
    words = f"{prefix}{tensor.name}: {tensor.dtype} [{', '.join(str(extent) for extent in tensor.shape)}]"
    if tensor.stride and tensor.stride != contiguous_strides(tensor.shape):
        words += f", strides [{', '.join(str(step) for step in tensor.stride)}] (not contiguous)"
    return words


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor of this shape."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def graph_words(operator: OperatorProfile) -> str:
    """The traced graph, one value a line: `arg0 = parameter scale` and
    `mul_1 = aten.mul.Tensor(arg0, 0.5) -> float32 [512, 1024]`."""
    lines = [
        f"{node.name} = {node.kind} {node.source}"
        for node in operator.nodes
        if node.kind in ("input", "parameter", "buffer")
    ]
    lines += [f"{name} = constant {values}" for name, values in operator.constants.items()]
    calls = [node for node in operator.nodes if node.kind == "call"]
    for node in calls[:GRAPH_NODES]:
        arguments = [_argument(argument) for argument in node.arguments]
        arguments += [f"{name}={_argument(argument)}" for name, argument in node.keywords.items()]
        results = ", ".join(f"{tensor.dtype} {list(tensor.shape)}" for tensor in node.outputs)
        lines.append(f"{node.name} = {node.target}({', '.join(arguments)}) -> {results}")
    if len(calls) > GRAPH_NODES:
        lines.append(f"... and {len(calls) - GRAPH_NODES} more calls")
    return "\n".join(lines)


def _argument(argument: Argument) -> str:
    if isinstance(argument, NodeReference):
        return argument.node
    if isinstance(argument, list):
        return f"[{', '.join(_argument(part) for part in argument)}]"
    return repr(argument)


def _ceilings(request: CodeRequest) -> dict[str, float] | None:
    if request.ceilings is None:
        return None
    return {
        "copy_gigabytes_per_second": request.ceilings.copy_rate(request.operator.unavoidable_bytes) / 1e9,
        "gigaflops": request.ceilings.fp32_operations_per_second / 1e9,
        "launch_microseconds": request.ceilings.launch_seconds * 1e6,
    }


def _floor(request: CodeRequest) -> float | None:
    from htam_agent.tools.diagnose import floor_ms

    if request.ceilings is None:
        return None
    return floor_ms(request.operator, request.ceilings, request.backend, request.precision)


def _strategy(scored: ScoredStrategy) -> dict[str, object]:
    strategy = scored.strategy
    block = strategy.block.strip()
    if len(block) > BLOCK_CHARACTERS:
        block = block[:BLOCK_CHARACTERS] + "\n[shortened]"
    return {
        "id": strategy.id,
        "title": strategy.title,
        "how": strategy.how,
        "why": scored.why,
        "edit": {name: value for name, value in strategy.edit.model_dump(mode="json").items() if value is not None},
        "block": block,
        "pitfalls": strategy.pitfalls,
    }


def _best(best: BestSoFar | None, request: CodeRequest) -> dict[str, object] | None:
    if best is None:
        return None
    profile = best.profile
    return {
        "source": without_launcher(best.source, request.backend),
        "times_ms": {
            TIME_WORDS[name]: value for name, value in best.times_ms if value is not None and name in TIME_WORDS
        },
        "diagnosis": profile.diagnosis if profile else "",
        "bottleneck": profile.bottleneck if profile else "unknown",
        "percent_of_floor": round(100 * profile.fraction_of_floor) if profile and profile.fraction_of_floor else None,
        "registers": profile.registers if profile else None,
        "spill_bytes": profile.spill_bytes if profile else None,
        "occupancy_percent": round(100 * profile.occupancy) if profile and profile.occupancy is not None else None,
    }
