"""Where a correct kernel stands against its device, and what bounds it, from measured time.

The figures are the operator's unavoidable bytes and operations over the measured time, against ceilings that were
measured on the same machine; hardware counters, where they were read, only add words. The rules, in order (t: the
kernel's time on the device):

1. `launch`: the launches alone take at least 40 % of t, or calls were measured to take the host longer than the device.
2. `memory`: unavoidable bytes / t reach at least 60 % of the copy rate, and the share of the arithmetic rate is lower.
3. `compute`: weighted operations / t reach at least 35 % of the multiply-add rate; for an operator with a matrix
   product or convolution on CUDA, operations / t reach that share of the rate of products at the declared precision.
4. `latency`: neither is near its ceiling.

For rule 3 transcendental functions are weighted, since the multiply-add rate does not apply to them: 16 on CUDA (the
special-function units give 16 results a clock and multiprocessor against 128 multiply-adds of two; CUDA programming
guide, table of arithmetic throughput), 20 on a processor (a polynomial of degree 6 with its range reduction). The
floor is a lower bound, so it counts every operation once.
"""

from __future__ import annotations

from collections.abc import Sequence

from htam_agent.backends.base import Occupancy
from htam_agent.backends.occupancy import limits_of, occupancy
from htam_agent.operator import OperatorProfile
from htam_agent.tools.measured_words import measured_words
from htam_agent.verdict import (
    Ceilings,
    DeviceFacts,
    FloorFractions,
    KernelResources,
    Launch,
    ProfileResult,
    RunResult,
    Times,
)
from htam_agent.words import Backend, Bottleneck, Precision, Record

PRODUCTS: dict[Precision, str] = {"ieee": "float32", "tf32": "TF32", "fp16": "16-bit", "bf16": "16-bit"}
LAUNCH_SHARE = 0.40
MEMORY_SHARE = 0.60
COMPUTE_SHARE = 0.35
TRANSCENDENTAL_WEIGHT = {"cuda": 16.0, "cpp": 20.0}
TRANSCENDENTAL = (
    "exp", "exp2", "expm1", "log", "log2", "log1p", "log10", "tanh", "sigmoid", "erf", "erfc", "erfinv", "pow", "sin",
    "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "gelu", "silu", "softplus", "mish", "elu", "selu", "_softmax",
    "_log_softmax", "logsumexp",
)  # fmt: skip
TENSOR_CORE = ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "convolution", "_scaled_dot_product")
"""Beginnings of ATen names whose operations may run on tensor cores, which the multiply-add ceiling says nothing of."""


class Shares(Record):
    """Shares of the measured time, 0 to about 1, and the floor in milliseconds."""

    memory: float
    compute: float
    launch: float
    floor_ms: float
    arithmetic: str
    """What `compute` is a share of, in words."""
    product: float | None = None
    """Share of the rate of matrix products; None where the operator has none, or the rate is not known."""
    cached: bool
    """True when the unavoidable bytes stay in a processor's cache between calls."""


def floor_ms(operator: OperatorProfile, ceilings: Ceilings, backend: Backend, precision: Precision = "tf32") -> float:
    """Milliseconds that no kernel for this operator beats on this device, by this count of its operations.

    max(unavoidable bytes / copy rate, operations / rate) plus one launch. Data that stay in a cache between timed calls
    are held against the copy rate of that cache. The rate is that of multiply-adds; on CUDA, for an operator with a
    matrix product or convolution, the measured one of products at the declared precision, and where that is not known
    the operations are left out: tensor cores exceed the multiply-add rate. Algebra that saves operations (Winograd,
    Strassen) may beat it.
    """
    memory = operator.unavoidable_bytes / ceilings.copy_rate(operator.unavoidable_bytes)
    rate = ceilings.fp32_operations_per_second
    if backend == "cuda" and _uses_tensor_cores(operator):
        rate = ceilings.product_rate(precision)
    compute = operator.operations / rate if rate > 0 else 0.0
    return 1e3 * (max(memory, compute) + ceilings.launch_seconds)


def fractions_of_floor(times: Times) -> FloorFractions:
    """Floor over time for each side that was timed; nothing where the floor is not known."""

    def fraction(milliseconds: float | None) -> float | None:
        return times.floor / milliseconds if times.floor and milliseconds else None

    return FloorFractions(candidate=fraction(times.candidate), eager=fraction(times.eager), best=fraction(times.best))


def _uses_tensor_cores(operator: OperatorProfile) -> bool:
    names = (name.removeprefix("aten.") for name in operator.operators)
    return operator.operator_class in ("matmul", "convolution", "attention") or any(
        name.startswith(TENSOR_CORE) for name in names
    )


def diagnose(
    operator: OperatorProfile,
    times: Times,
    ceilings: Ceilings,
    device: DeviceFacts,
    resources: Sequence[KernelResources] = (),
    launches: Sequence[Launch] = (),
    *,
    precision: Precision = "tf32",
    run: RunResult | None = None,
) -> ProfileResult:
    """Profile of a kernel whose `times.candidate` was measured; without it the bottleneck is `unknown`.

    `resources` are the built kernels' static facts and `launches` what the launcher recorded; both may be empty. `run`:
    the judged run, for what else it measured (time of calls, share of own kernels, counters).
    """
    milliseconds = times.candidate
    floor = floor_ms(operator, ceilings, device.backend, precision)
    if milliseconds is None or milliseconds <= 0:
        return ProfileResult(
            bottleneck="unknown",
            diagnosis="The kernel was not timed, so nothing can be said about what bounds it.",
            floor_ms=floor,
        )
    seconds = milliseconds / 1e3
    shares = _shares(operator, seconds, ceilings, device, max(len(launches), 1), precision)
    bottleneck = "launch" if run is not None and run.launch_bound else _bottleneck(shares)
    kernel, launch = _dominant(resources, launches)
    resident = _resident(device, kernel, launch)
    return ProfileResult(
        bottleneck=bottleneck,
        diagnosis=" ".join(
            [
                *_words(bottleneck, shares, device, kernel, launch, launches, resident),
                *(measured_words(run, operator.unavoidable_bytes) if run is not None else []),
            ]
        ),
        achieved_bytes_per_second=operator.unavoidable_bytes / seconds,
        achieved_operations_per_second=operator.operations / seconds,
        floor_ms=shares.floor_ms,
        fraction_of_floor=shares.floor_ms / milliseconds,
        registers=kernel.registers if kernel else None,
        spill_bytes=kernel.spill_bytes if kernel else None,
        shared_bytes=_shared_bytes(kernel, launch),
        occupancy=resident.fraction if resident else None,
        limited_by=resident.limited_by if resident else "",
        fractions=fractions_of_floor(times.model_copy(update={"floor": floor})),
        tensor_share=shares.product,
        launch_bound=run.launch_bound if run is not None else None,
        own_share=run.own_share if run is not None else None,
        counters=run.counters if run is not None else [],
    )


def _shares(
    operator: OperatorProfile,
    seconds: float,
    ceilings: Ceilings,
    device: DeviceFacts,
    launches: int,
    precision: Precision,
) -> Shares:
    rate = ceilings.copy_rate(operator.unavoidable_bytes)
    weighted = operator.operations + (TRANSCENDENTAL_WEIGHT[device.backend] - 1) * transcendental_elements(operator)
    compute = weighted / ceilings.fp32_operations_per_second / seconds
    products = ceilings.product_rate(precision) if device.backend == "cuda" and _uses_tensor_cores(operator) else 0.0
    share = operator.operations / products / seconds if products else None
    return Shares(
        memory=operator.unavoidable_bytes / rate / seconds,
        compute=compute if share is None else share,
        arithmetic=f"rate of {PRODUCTS[precision]} matrix products"
        if share is not None
        else "multiply-add rate (transcendental functions weighted)",
        product=share,
        launch=launches * ceilings.launch_seconds / seconds,
        floor_ms=floor_ms(operator, ceilings, device.backend, precision),
        cached=rate > ceilings.copy_bytes_per_second,
    )


def transcendental_elements(operator: OperatorProfile) -> int:
    """Elements for which a transcendental function is evaluated, over all nodes of the traced graph."""
    total = 0
    for node in operator.nodes:
        parts = node.target.split(".")
        if len(parts) > 1 and parts[1].rstrip("_") in TRANSCENDENTAL and node.outputs:
            total += node.outputs[0].elements
    return total


def _bottleneck(shares: Shares) -> Bottleneck:
    if shares.launch >= LAUNCH_SHARE:
        return "launch"
    if shares.memory >= MEMORY_SHARE and shares.memory >= shares.compute:
        return "memory"
    return "compute" if shares.compute >= COMPUTE_SHARE else "latency"


def _dominant(
    resources: Sequence[KernelResources], launches: Sequence[Launch]
) -> tuple[KernelResources | None, Launch | None]:
    """The kernel that stands for the candidate: of those launched the one with the most threads, and its launch."""
    known = {kernel.name: kernel for kernel in resources}
    if not launches:
        return (resources[0] if len(resources) == 1 else None), None
    largest = max(launches, key=_threads)
    return known.get(largest.kernel), largest


def _threads(launch: Launch) -> int:
    total = 1
    for extent in (*launch.grid, *launch.block):
        total *= extent
    return total


def _shared_bytes(kernel: KernelResources | None, launch: Launch | None) -> int | None:
    if kernel is None or kernel.static_shared_bytes is None:
        return None
    return kernel.static_shared_bytes + (launch.dynamic_shared_bytes if launch else 0)


def _resident(device: DeviceFacts, kernel: KernelResources | None, launch: Launch | None) -> Occupancy | None:
    limits = limits_of(device.architecture) if device.backend == "cuda" else None
    if limits is None or kernel is None or launch is None or kernel.registers is None:
        return None
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if not 1 <= threads <= 1024:
        return None
    return occupancy(limits, threads, kernel.registers, _shared_bytes(kernel, launch) or 0)


def _words(
    bottleneck: Bottleneck,
    shares: Shares,
    device: DeviceFacts,
    kernel: KernelResources | None,
    launch: Launch | None,
    launches: Sequence[Launch],
    resident: Occupancy | None,
) -> list[str]:
    main = _MAIN["product" if bottleneck == "compute" and shares.product is not None else bottleneck]
    words = [main.format(**shares.model_dump())]
    if shares.memory > 1.05:
        words.append("It runs above the measured copy rate, so part of the data comes from a cache.")
    elif shares.cached:
        words.append("The data stay in the processor's cache between calls; figures are held against that cache.")
    if len(launches) > 1:
        words.append(f"It makes {len(launches)} launches; what passes between them goes through memory.")
    if bottleneck == "latency" and shares.product is not None:
        words.append(
            f"It reaches {shares.product:.0%} of the {shares.arithmetic}: if the product itself is written by hand, "
            "feed the tensor cores (mma or wgmma on tiles staged in shared memory), or leave it to the library."
        )
    if bottleneck == "latency" and device.backend == "cuda":
        words.extend(_latency_words(device, launch, resident))
    if kernel is not None and kernel.spill_bytes:
        words.append(
            f"{kernel.spill_bytes} bytes of registers spill to memory: hold less or use fewer threads a block."
        )
    return words


_MAIN: dict[str, str] = {
    "memory": "Bound by memory: {memory:.0%} of the copy rate for unavoidable bytes; only moving fewer bytes (each "
    "input read once, results kept on chip between passes) makes it faster.",
    "compute": "Bound by arithmetic: {compute:.0%} of the {arithmetic} and "
    "{memory:.0%} of the copy rate; use cheaper formulas, vector instructions and fewer conversions.",
    "product": "Bound by tensor cores: {compute:.0%} of the {arithmetic} and {memory:.0%} of the copy rate; only fewer "
    "operations, or work that is fused into the product instead of following it, make it faster.",
    "launch": "Bound by launches: they alone take {launch:.0%} of the time; fuse kernels and make fewer, larger calls.",
    "latency": "Neither memory ({memory:.0%} of the copy rate) nor arithmetic ({compute:.0%}) is near its ceiling: it "
    "waits. Either it moves bytes more than once, or too few loads are in flight (wider loads, more independent "
    "work for each thread, more parallel rows).",
    "unknown": "What bounds it is unknown.",
}


def _latency_words(device: DeviceFacts, launch: Launch | None, resident: Occupancy | None) -> list[str]:
    words = []
    if launch is not None and device.threads:
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        if blocks < device.threads:
            words.append(f"Only {blocks} blocks for {device.threads} multiprocessors: part of the device idles.")
    if resident is not None and resident.fraction < 0.5:
        words.append(f"Occupancy is {resident.fraction:.0%}, limited by {resident.limited_by}.")
    return words
