"""What tools and the evaluator answer: values, never exceptions (see errors.py for broken infrastructure)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from htam_agent.failures import Difference, FailureCause
from htam_agent.plain_text import plain_line, plain_whole
from htam_agent.words import Backend, Bottleneck, Precision, Protocol, Record, Stage, Verdict

Text = Annotated[str, AfterValidator(plain_whole)]
Name = Annotated[str, AfterValidator(plain_line)]
"""Words that a candidate may have had a part in: names of its kernels, its errors, a compiler's log of its source.
They are cleaned here, where they enter a result, whichever way they came."""


class Speedups(Record):
    """Reference time over candidate time against each baseline; null where the baseline was not measured."""

    eager: float | None = None
    eager_tf32: float | None = None
    compile: float | None = None
    best: float | None = None
    reason: str = ""
    """Why a value is null."""


class Interval(Record):
    """Confidence interval (at least 95 %) of the speedup over `best`."""

    low: float
    high: float


class Times(Record):
    """Median milliseconds; null where not measured."""

    candidate: float | None = None
    eager: float | None = None
    eager_tf32: float | None = None
    compile: float | None = None
    best: float | None = None
    floor: float | None = None


class BothSides(Record):
    """Milliseconds of a call, measured alike on both sides; `reference`: the best baseline."""

    candidate: float
    reference: float


class Check(Record):
    """One named check of an evaluation."""

    name: Text
    passed: bool
    detail: Text = ""


class DeviceFacts(Record):
    """Where a number was measured: every record carries it."""

    backend: Backend
    name: str
    """"NVIDIA H200", or the CPU's model name."""
    architecture: str
    """"sm_90", or the machine ("x86_64")."""
    driver: str = ""
    compiler: str = ""
    torch: str = ""
    libraries: dict[str, str] = Field(default_factory=dict)
    threads: int = 0
    """CPU threads (cpp) or multiprocessors (cuda)."""
    memory_bytes: int = 0


class GpuState(Record):
    """A GPU's clocks and limits at one moment, read from NVML and never set; None where it does not give a figure."""

    sm_clock_mhz: int | None = None
    sm_clock_limit_mhz: int | None = None
    """The highest that this GPU offers."""
    memory_clock_mhz: int | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None
    throttled_by: list[str] = Field(default_factory=list)
    """Why clocks are below their maximum, in words ("software power cap"); empty when nothing holds them."""


class CacheCeiling(Record):
    """A cache level: a task whose unavoidable bytes are at most `bytes` stays in it between timed calls."""

    bytes: int
    copy_bytes_per_second: float


class Ceilings(Record):
    """What this device reaches at most, measured once: bytes per second of a large copy (read plus written), and
    FP32 multiply-add operations per second (two for each). 0 where a figure does not exist or is not known."""

    copy_bytes_per_second: float
    fp32_operations_per_second: float
    launch_seconds: float = 0.0
    """Seconds of one empty call (a kernel launch, or a parallel region)."""
    tf32_operations_per_second: float = 0.0
    """cuda: of a large matrix product by torch with TF32 inputs, float32 sums (2mnk operations)."""
    bf16_operations_per_second: float = 0.0
    """cuda: the same with bfloat16 inputs; float16 has the same rate."""
    dram_bytes_per_second: float = 0.0
    """cuda: what the memory's clock and bus allow in theory."""
    caches: list[CacheCeiling] = Field(default_factory=list)
    """cpp: cache levels, smallest first; empty where timing flushes the cache (cuda)."""

    def product_rate(self, precision: Precision) -> float:
        """Operations per second that matrix products reach at a declared precision; 0 where it is not known."""
        if precision == "ieee":
            return self.fp32_operations_per_second
        return self.tf32_operations_per_second if precision == "tf32" else self.bf16_operations_per_second

    def copy_rate(self, working_set: int) -> float:
        """Bytes per second that a copy reaches when `working_set` bytes stay in the nearest cache that holds them."""
        for cache in self.caches:
            if working_set <= cache.bytes:
                return max(cache.copy_bytes_per_second, self.copy_bytes_per_second)
        return self.copy_bytes_per_second


class CompileResult(Record):
    """Outcome of building a candidate. `ok` false: `log` holds the compiler's own words."""

    ok: bool
    backend: Backend
    log: Text = ""
    binary: str = ""
    """Path of the cubin or shared library; empty when the file builds itself (load_inline), or has nothing to build."""
    folder: str = ""
    """The candidate's own folder: its file and its binary lie there."""
    seconds: float = 0.0
    cached: bool = False
    deferred: bool = False
    """True when the candidate builds itself at import (load_inline): the build happens inside the run stage."""
    stage: Stage = "compile"
    reason: Text = ""
    kernels: list[KernelResources] = Field(default_factory=list)


class KernelResources(Record):
    """Static facts of one built kernel (cuda: from the cubin)."""

    name: Name
    registers: int | None = None
    spill_bytes: int | None = None
    static_shared_bytes: int | None = None


class Launch(Record):
    """One kernel launch that a candidate's launcher recorded."""

    kernel: Name
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int = 0


class FloorFractions(Record):
    """Floor over time of each side: 1 is the least time that the task's bytes and operations allow on this device; null
    where a side was not timed."""

    candidate: float | None = None
    eager: float | None = None
    best: float | None = None


class KernelCounters(Record):
    """What Nsight Compute measured of one launch; null for a figure that it did not give. Percentages are of what the
    device sustains at most."""

    kernel: Name
    nanoseconds: float | None = None
    dram_bytes_read: float | None = None
    dram_bytes_written: float | None = None
    dram_percent: float | None = None
    multiprocessor_percent: float | None = None
    occupancy_percent: float | None = None
    """Resident warps, as measured."""
    l2_hit_percent: float | None = None
    registers: int | None = None
    """Of one thread."""


class RunResult(Record):
    """Outcome of judging one candidate: the verdict, the stage that it reached, each check, and the times."""

    verdict: Verdict
    stage: Stage
    reason: Text = ""
    infrastructure: bool = False
    """Whether harness, task, disk or machine failed beside the candidate: the verdict says nothing about the kernel."""
    difference: Difference | None = None
    """Where and how a wrong output differs, on the first inputs on which one did; null where it is not that."""
    protocols: dict[Protocol, Verdict] = Field(default_factory=dict)
    checks: list[Check] = Field(default_factory=list)
    speedup: Speedups = Field(default_factory=Speedups)
    interval: Interval | None = None
    faster: bool = False
    times_ms: Times = Field(default_factory=Times)
    device_ms: BothSides | None = None
    """Of a call by events on the device (cuda) or the processor's clock (cpp); with a cold L2 unless it was asked for
    otherwise."""
    call_ms: BothSides | None = None
    """Of a call, one after the other with nothing between them, by the harness's own clock."""
    launch_bound: bool | None = None
    """Whether the host, not the device, decides how long the candidate's calls take; null: nothing was launched."""
    graph_ms: BothSides | None = None
    """Of a replayed CUDA graph of one call, where a side is launch-bound; null with the reason in the check "graph"."""
    gpu_before: GpuState | None = None
    gpu_after: GpuState | None = None
    """The GPU round the timed calls."""
    launches: list[Launch] = Field(default_factory=list)
    confinement: list[Text] = Field(default_factory=list)
    """The layers that were active round the candidate, e.g. ["process-group", "landlock", "no-network"]."""
    confinement_missing: list[Text] = Field(default_factory=list)
    own_share: float | None = None
    """Share of a call's time in the candidate's own kernels: of the GPU's by its profiler, or on a processor what goes
    away with them. Null where it was not measured."""
    counters: list[KernelCounters] = Field(default_factory=list)
    """Of the candidate's own kernels in one call: from the deep checks, where the machine allows it."""
    fractions: FloorFractions = Field(default_factory=FloorFractions)
    seconds: float = 0.0
    stages: dict[str, float] = Field(default_factory=dict)
    """Seconds by what was waited for: "compile", "spawn", "candidate trial", "reference judge" and so on. What is
    missing to `seconds` (plus compile) is the main process's own."""


class ProfileResult(Record):
    """Where a correct kernel stands against the device's ceilings."""

    bottleneck: Bottleneck
    diagnosis: str
    """One or two sentences that a coder can act on."""
    achieved_bytes_per_second: float = 0.0
    achieved_operations_per_second: float = 0.0
    floor_ms: float = 0.0
    fraction_of_floor: float = 0.0
    """floor_ms / time: 1 is speed of light."""
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    """Resident warps over the most that a multiprocessor holds; null for cpp."""
    limited_by: str = ""
    """What bounds the occupancy: registers, shared memory, threads, blocks."""
    fractions: FloorFractions = Field(default_factory=FloorFractions)
    """Of the floor, reached by the reference and by the candidate."""
    tensor_share: float | None = None
    """Share of the measured rate of matrix products at the declared precision; null where the task has none."""
    launch_bound: bool | None = None
    """Whether the host decides how long its calls take; null where that was not measured."""
    own_share: float | None = None
    """Share of the time that its own kernels take, the rest being a library's; null where it was not measured."""
    counters: list[KernelCounters] = Field(default_factory=list)
    """From Nsight Compute, where it was asked for and the machine allows it."""


FailureKind = Literal["compile", "load", "policy", "construct", "run", "wrong", "quarantined", "unsupported"]


class Failure(Record):
    """Why a candidate did not become correct: what the repair edge carries."""

    kind: FailureKind
    stage: Stage
    reason: str
    evidence: str = ""
    """Compiler log or comparison report, shortened to what matters."""
    cause: FailureCause = "unknown"
    difference: Difference | None = None
    """Where and how a wrong output differs."""


CompileResult.model_rebuild()
