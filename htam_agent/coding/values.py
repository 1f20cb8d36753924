"""What the prompts see: plain values made from a request."""

from __future__ import annotations

import re
from collections.abc import Iterator

from htam_agent.backends.occupancy import limits_of
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
SHOWN_STRATEGIES = 5
LONGEST_PLACEHOLDER = 32
_STATEMENT = re.compile(r"{%.*?%}|{#.*?#}", re.DOTALL)
_PLACEHOLDER = re.compile(r"{{\s*(.*?)\s*}}")
BLOCK_CHARACTERS = 2500
GRAPH_NODES = 80
EVIDENCE_CHARACTERS = 6000
REASON_CHARACTERS = 2000
NOISY = 3.0
"""High over low end of an interval, from which a measured ratio tells little."""


def common_values(request: CodeRequest) -> dict[str, object]:
    """Variables of every prompt."""
    return {
        "backend": request.backend,
        "constant": SOURCE_CONSTANT[request.backend],
        "launcher_name": LAUNCHER_NAME[request.backend],
        # The one word of the machine that stands outside of fences.
        "architecture": re.sub(r"\W", "", request.device.architecture)[:32],
    }


def code_values(request: CodeRequest) -> dict[str, object]:
    """Variables of the prompt `code`."""
    operator, device = request.operator, request.device
    return {
        **common_values(request),
        "task_source": request.task_source,
        "operator": operator_values(operator),
        "graph": graph_words(operator),
        "device": device.model_dump(mode="json"),
        "simd": device.libraries.get("simd", ""),
        "limits": _limits(device.architecture) if request.backend == "cuda" else "",
        "ceilings": _ceilings(request),
        "floor_ms": _floor(request),
        "target": target_words(request),
        "precision": request.precision,
        "policy": request.policy,
        "direction": _direction(request),
        "direction_why": request.direction_why,
        "strategies": [_strategy(scored) for scored in request.strategies[:SHOWN_STRATEGIES]],
        "best": _best(request.best, request),
        "history": request.history,
        "step": request.step,
        "index": request.index,
        "shortened": [],
    }


def operator_values(operator: OperatorProfile) -> dict[str, object]:
    """The traced operator; `facts` says all of it in lines."""
    values: dict[str, object] = {
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
    }
    return {**values, "facts": "\n".join(_operator_lines(operator, values))}


def _operator_lines(operator: OperatorProfile, values: dict[str, object]) -> Iterator[str]:
    for name, title in (
        ("inputs", "inputs of forward, in order"),
        ("parameters", "parameters"),
        ("buffers", "buffers"),
        ("outputs", "outputs"),
    ):
        words = values[name]
        if isinstance(words, list) and (words or name == "inputs"):
            yield f"{title}: {'; '.join(words) or 'none'}"
    yield f"class: {operator.operator_class}; PyTorch operators: {', '.join(operator.operators)}"
    megabytes, operations = f"{operator.unavoidable_bytes / 1e6:.4g}", f"{operator.operations / 1e6:.4g}"
    yield f"at least {megabytes} MB must move, and {operations} million operations must be done"
    if operator.training and (operator.buffers or operator.random):
        yield "it runs in training mode (module.training is true)"
    if operator.random:
        yield "it draws random numbers"
    if operator.untraceable:
        yield f"it could not be traced: {operator.untraceable}"


def target_words(request: CodeRequest) -> str:
    """What is to be beaten, and what cannot be: baselines and floor in milliseconds."""
    times = request.baselines
    floor = _floor(request)
    parts = []
    if times is not None and times.best is not None:
        others = [
            f"{TIME_WORDS[name]} {value:.4g} ms"
            for name, value in times
            if value is not None and name in ("eager", "eager_tf32", "compile")
        ]
        parts.append(f"To beat: {times.best:.4g} ms, the fastest of {', '.join(others) or 'the baselines'}.")
    if floor is not None:
        parts.append(f"The floor, which no kernel for this operator beats: about {floor:.4g} ms.")
    return " ".join(parts)


def _direction(request: CodeRequest) -> dict[str, object] | None:
    """None: no direction was chosen (a memory mode without one)."""
    direction = request.direction
    if direction is None:
        return None
    lines = [f"{direction.id}: {direction.title}", direction.intent]
    if request.direction_why:
        lines.append(f"Chosen because: {request.direction_why}")
    return {**direction.model_dump(mode="json"), "words": "\n".join(lines)}


def _limits(architecture: str) -> str:
    """What a multiprocessor holds, in words; empty for an architecture that is not known."""
    limits = limits_of(architecture)
    if limits is None:
        return ""
    return (
        f"a block has at most 1024 threads and {limits.shared_bytes_per_block >> 10} KB of shared memory, a "
        f"multiprocessor {limits.threads} threads, {limits.shared_bytes >> 10} KB and 65536 registers"
    )


def repair_values(request: RepairRequest) -> dict[str, object]:
    """Variables of the prompt `repair`."""
    failure = request.failure
    return {
        **common_values(request.request),
        "kind": failure.kind,
        "stage": failure.stage,
        "reason": failure.reason[:REASON_CHARACTERS],
        "cause": failure.cause,
        "evidence": failure.evidence[:EVIDENCE_CHARACTERS],
        "difference": failure.difference.words() if failure.difference is not None else "",
        "attempt": request.attempt,
        "tried": request.tried,
        "problem": "",
        "cut_off": False,
        "ending": "",
    }


def no_file_values(request: CodeRequest, problem: str, attempt: int, ending: str = "") -> dict[str, object]:
    """Variables of the prompt `repair` after an answer without a usable file. `ending`: the last lines of an answer
    that was cut off and is to be gone on with."""
    return {
        **common_values(request),
        "kind": "answer",
        "stage": "",
        "reason": "",
        "cause": "unknown",
        "evidence": "",
        "difference": "",
        "attempt": attempt,
        "tried": [],
        "problem": problem,
        "cut_off": bool(ending),
        "ending": ending,
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
    block = readable(strategy.block)
    if len(block) > BLOCK_CHARACTERS:
        block = block[:BLOCK_CHARACTERS] + "\n[shortened]"
    edit = {name: value for name, value in strategy.edit.model_dump(mode="json").items() if value is not None}
    lines = [f"{strategy.id}: {strategy.title}", strategy.how]
    if scored.why:
        lines.append(f"Why here: {scored.why}")
    if strategy.pitfalls:
        lines.append(f"Pitfalls: {'; '.join(pitfall.rstrip('.') for pitfall in strategy.pitfalls)}.")
    if edit:
        lines.append(f"Plan: {', '.join(f'{name} = {value}' for name, value in edit.items())}")
    return {
        "id": strategy.id,
        "title": strategy.title,
        "how": strategy.how,
        "why": scored.why,
        "edit": edit,
        "block": block,
        "pitfalls": strategy.pitfalls,
        "words": "\n".join(lines),
    }


def readable(block: str) -> str:
    """A strategy's template as a model reads it: without the generator's loops and choices, its placeholders short."""
    lines = []
    for line in block.strip().splitlines():
        kept = _STATEMENT.sub("", line)
        if kept.strip() or not line.strip():
            lines.append(_PLACEHOLDER.sub(_short_placeholder, kept).rstrip())
    return "\n".join(lines)


def _short_placeholder(match: re.Match[str]) -> str:
    return f"<{match[1]}>" if len(match[1]) <= LONGEST_PLACEHOLDER else "<...>"


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
        "standing": "\n".join(_standing(best, _floor(request))),
    }


def _standing(best: BestSoFar, floor: float | None) -> Iterator[str]:
    """How far the best kernel is from what it is measured against, and what bounds it."""
    time_ms, profile = best.times_ms.candidate, best.profile
    if time_ms is not None:
        far = f", {time_ms / floor:.3g} times the floor of {floor:.4g} ms" if floor else ""
        yield f"It takes {time_ms:.4g} ms{far}."
    ratio = best.speedup
    if ratio is None and time_ms and best.times_ms.best:
        ratio = best.times_ms.best / time_ms
    if ratio is not None:
        spread = f" (measured between {best.interval.low:.3g} and {best.interval.high:.3g})" if best.interval else ""
        side = "faster than" if ratio >= 1 else "slower than"
        factor = ratio if ratio >= 1 else 1 / ratio
        yield f"It is {factor:.3g} times {side} the baseline to beat{spread}."
        if best.interval and best.interval.high > NOISY * best.interval.low:
            yield "The machine was busy: this figure says little, and so does the diagnosis."
    if profile is not None and profile.diagnosis:
        yield f"Diagnosis ({profile.bottleneck}): {profile.diagnosis}"
    if profile is not None and profile.registers is not None:
        occupancy = f", occupancy {profile.occupancy:.0%}" if profile.occupancy is not None else ""
        limit = f" (limited by {profile.limited_by})" if profile.limited_by and occupancy else ""
        yield f"Registers {profile.registers}, spilled bytes {profile.spill_bytes}{occupancy}{limit}."
