"""Every message between the harness processes, as pydantic records (see channel.py).

Main process <-> zygote: commands.py. Main <-> reference worker: Ask, Told and the records inside them. Main <->
candidate worker: Order and Answer; main <-> build child: BuildOrder and Built.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from htam_agent.evaluation.accuracy import Errors
from htam_agent.evaluation.channel import Letter
from htam_agent.evaluation.confinement import Cell
from htam_agent.evaluation.deep.records import DeepJudge, DeepJudged, DeepPrepare, DeepPrepared
from htam_agent.evaluation.trees import TensorSpec, Tree
from htam_agent.failures import Difference
from htam_agent.operator import OperatorProfile
from htam_agent.plain_text import plain, plain_end, plain_line
from htam_agent.task import Task
from htam_agent.verdict import Check, CompileResult, Launch
from htam_agent.words import Backend, Precision, Protocol

SHIFTS, SHIFT_BYTES = 16, 4096
"""Shared inputs lie at one of this many addresses, so many bytes apart, drawn for each trial."""
Variant = Literal["eager", "eager_tf32", "compile"]
"""The opponents: how the reference is run when it is timed."""


Regime = Literal["declared", "defaults"]
"""Under which precision flags a trial runs: the declared precision's, or PyTorch's own as the candidate's file leaves
them."""
Family = Literal["", "scale", "shift", "sign", "sparse", "extreme-rows"]
"""Drawn families of inputs (variation.py); empty: the task's own values."""


class StateEntry(Letter):
    """One parameter or buffer of the reference model. `changes`: the reference's own forward writes it."""

    name: str
    spec: TensorSpec
    parameter: bool
    changes: bool = False


class Blueprint(Letter):
    """What a candidate worker must know of the task; nothing in it reveals an expected output."""

    device: str
    precision: Precision
    training: bool
    threads: int
    init: Tree
    init_tensors: list[TensorSpec] = Field(default_factory=list)
    """In the state buffer, behind the state."""
    keyword_init: bool = False
    inputs: Tree
    input_tensors: list[TensorSpec] = Field(default_factory=list)
    keyword_inputs: bool = False
    state: list[StateEntry] = Field(default_factory=list)
    input_bytes: int = 0
    state_bytes: int = 0
    output_bytes: int = 0
    slots: int = 1
    """Sets of inputs of different values in the input buffer, `slot_bytes` apart; timed calls take them in turn."""
    slot_bytes: int = 0


class Load(Letter):
    """Order to the reference worker: load this task."""

    task: Task
    backend: Backend
    device: str
    precision: Precision
    seed: int
    python_path: list[str] = Field(default_factory=list)
    threads: int = 1


class Loaded(Letter):
    """The task is loaded; three descriptors follow: inputs, state, outputs."""

    operator: OperatorProfile
    blueprint: Blueprint
    weak: str = ""
    """Which null kernels would pass; empty when none does."""
    notes: list[Check] = Field(default_factory=list)
    writes_inputs: bool = False
    aliases_inputs: bool = False
    """An output of the reference shares memory with an input."""
    allowance: float = 0.0
    """The reference's own relative error at the declared precision."""
    bandwidth: float = 0.0
    """Theoretical DRAM bytes per second, filled in by the main process from the ceilings; 0 where unknown."""
    flags_matter: bool = False
    """Expected outputs depend on the precision flags: protocols with other flags need trials of their own."""
    float64_reason: str = ""
    """Why the float64 reference cannot be used; empty when it can."""
    float64_seconds: float = 0.0
    """Of one call."""
    float64_applies: bool = True
    """False: no output whose accuracy float64 could tell (integers only, or float64 already)."""
    clock: str = ""
    """Why the reference's stopwatch is not the native one; empty when it is."""


class Prepare(Letter):
    """Order: draw fresh inputs for one trial, put them into shared memory, compute the expected outputs."""

    seed: int
    factor: float = 1.0
    shift: int = 0
    changed_parameters: bool = False
    redraw: bool = True
    """False: the last drawn inputs again, with this factor."""
    family: Family = ""
    regime: Regime = "declared"
    first: bool = False
    """The first trial of an evaluation: errors pooled before are forgotten."""
    blend: bool = False
    """Without redraw: between the last drawn inputs and others, by shares that the seed gives."""
    slot: int = 0
    write: bool = True
    """False: shared inputs are left alone (they hold these values already)."""
    expect: bool = True
    """False: nothing is computed; a later order with the same values and `write` false does it."""
    calls: int = 1
    """What is expected is what the last of so many calls in a row gives."""
    go_on: bool = False
    """The call after the last one: on the state that it left, which is not put into shared memory (a candidate has its
    own), and on the inputs that it left where calls write to them."""


class Prepared(Letter):
    """`usable` false: the reference fails or is not finite on these values where plain ones were fine."""

    usable: bool = True
    reason: str = ""


class Judge(Letter):
    """Order: compare what the candidate left in shared memory with what was expected."""

    outputs: Tree
    tensors: list[TensorSpec]
    protocols: list[Protocol]
    shift: int = 0
    state: bool = True
    slot: int = 0
    exact: bool = False
    """Compare with float64 too (strict)."""
    overwritten: bool = False
    """The shared inputs hold other values by now."""


class Measured(Letter):
    """Errors of one output against float64. `single`: against float32 without TF32 instead."""

    name: str
    dtype: str
    errors: Errors
    single: bool = False


class Finding(Letter):
    """One comparison: passed, or what differs where. `excess`: the largest error over the tolerance where only that is
    wrong, 0 where something else is (form, places of NaN and infinities, integers). `difference`: where and how."""

    name: str
    passed: bool
    detail: str = ""
    excess: float = 0.0
    difference: Difference | None = None


class Judged(Letter):
    """What each protocol says of the trial."""

    findings: dict[Protocol, list[Finding]]
    measured: list[Measured] = Field(default_factory=list)
    rescued: str = ""
    """Why an output beyond the tolerance counts as right all the same; empty: none does."""
    float64_reason: str = ""
    """Why float64 could not be used in this trial."""


class Warm(Letter):
    """Order: run this variant for `seconds`; the answer's one time is the mean of a call."""

    variant: Variant
    seconds: float


class Repeat(Letter):
    """How calls are repeated: on `slots` sets of inputs in turn; with `flushes` of the L2 before each (cuda);
    `summary`: only their median is answered; `back_to_back`: nothing is timed, whoever asked does it; `graph`: the
    same, of replays of a CUDA graph of one call."""

    calls: int = 0
    slots: int = 1
    flushes: int = 1
    summary: bool = False
    back_to_back: bool = False
    graph: bool = False


class Block(Repeat):
    """Order: time `calls` calls of a variant on the inputs in shared memory; `empty`: of nothing."""

    variant: Variant
    empty: bool = False


class Timed(Letter):
    """Milliseconds of each call; empty with `reason` where the variant cannot run. `first_ms`: the call before them."""

    milliseconds: list[float] = Field(default_factory=list)
    first_ms: float = 0.0
    reason: str = ""


class Ask(Letter):
    """Main to the reference worker: exactly one field is set."""

    load: Load | None = None
    prepare: Prepare | None = None
    judge: Judge | None = None
    settle: bool = False
    warm: Warm | None = None
    block: Block | None = None
    other_shapes: DeepPrepare | None = None
    other_outputs: DeepJudge | None = None


class Trouble(Letter):
    """An HtamError on its way to the main process."""

    code: str
    message: str
    remedy: str
    usage: bool = True


class Told(Letter):
    """The reference worker's answer: the field of the question, or `trouble`."""

    loaded: Loaded | None = None
    prepared: Prepared | None = None
    judged: Judged | None = None
    timed: Timed | None = None
    other_shapes: DeepPrepared | None = None
    other_outputs: DeepJudged | None = None
    trouble: Trouble | None = None


class Enter(Letter):
    """First order to a candidate worker; the three buffers' descriptors come with it. Confinement happens here."""

    blueprint: Blueprint
    cell: Cell
    file: str
    buffer_sizes: list[int]


PlainText = Annotated[str, AfterValidator(plain)]
PlainEnd = Annotated[str, AfterValidator(plain_end)]
PlainLine = Annotated[str, AfterValidator(plain_line)]
"""Of a candidate: it may hold anything, and comes into checks, reasons and logs."""


class KernelTime(Letter):
    """All runs of one GPU kernel in a call, added up, by torch's profiler."""

    name: PlainLine
    microseconds: float
    count: int = 1


LaunchMode = Literal["", "count", "drop"]


class LaunchCounts(Letter):
    """Launches of the CUDA runtime in one call (launch_counting.py): by the candidate's own libraries, by others, and
    of whole graphs. `known` false: they were not counted."""

    known: bool = False
    own: int = 0
    others: int = 0
    graphs: int = 0


class Trial(Letter):
    """Order: one call of the candidate's forward on the inputs in shared memory, `shift` bytes on."""

    shift: int = 0
    load_state: bool = True
    slot: int = 0
    ordered: bool = False
    """CUDA: the inputs reach their place late, on the current stream, and the outputs are taken from it there: work on
    another stream that does not wait for it, or is not waited for, reads or leaves something else."""
    regime: Regime = "declared"
    watch: bool = False
    """Watch by a dispatch mode which operators run."""
    kernels: bool = False
    """Time the GPU kernels by torch's profiler."""
    launch_mode: LaunchMode = ""
    """Count launches of the CUDA runtime, or leave out those of the candidate's own libraries."""
    record: bool = False
    """Record which operators run in all threads, and which packages are called (see watching.py)."""


class Measure(Repeat):
    """Order: warm up for `warm_seconds`, or time `calls` calls; `alone`: on the state as it was, no call before."""

    alone: bool = False
    warm_seconds: float = 0.0
    regime: Regime = "declared"


class Order(Letter):
    """Main to a candidate worker: exactly one field is set; `imports`, `instance`, `ping`, `hand_over` (the outputs of
    the last timed call) and `audit` (from now on note what is loaded; say what was) have no content."""

    enter: Enter | None = None
    imports: bool = False
    instance: bool = False
    trial: Trial | None = None
    measure: Measure | None = None
    hand_over: bool = False
    kept: int = 0
    """Of which set of inputs the outputs are handed over."""
    keep: bool = False
    """They will be asked for again."""
    state: bool = False
    """With the outputs, the state as the calls left it is put into shared memory."""
    audit: bool = False
    ping: bool = False
    """Whether it is still there: answered with nothing."""


class Answer(Letter):
    """A candidate worker's answer: evidence to be judged, never a verdict."""

    ok: bool
    reason: PlainText = ""
    evidence: PlainEnd = ""
    active: list[PlainText] = Field(default_factory=list)
    missing: list[PlainText] = Field(default_factory=list)
    outputs: Tree | None = None
    tensors: list[TensorSpec] = Field(default_factory=list)
    operators: list[PlainText] = Field(default_factory=list)
    recorded: list[PlainText] = Field(default_factory=list)
    kernels: list[KernelTime] = Field(default_factory=list)
    launch_counts: LaunchCounts = LaunchCounts()
    own_namespaces: list[PlainText] = Field(default_factory=list)
    """Of operators that were registered since the candidate's import began."""
    milliseconds: list[float] = Field(default_factory=list)
    first_ms: float = 0.0
    hidden_ms: float = 0.0
    launches: list[Launch] = Field(default_factory=list)
    loaded: list[PlainText] = Field(default_factory=list)
    """What the file opened, loaded and started since it was first asked for (see auditing.py)."""
    clock: PlainText = ""
    """Why its stopwatch is not the native one, said before anything of the file has run; empty when it is."""
    unlaunched: bool = False
    """The file keeps a list LAUNCHES as our launcher does, and nothing is in it."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.outputs is not None and list(self.outputs.indices()) != list(range(len(self.tensors))):
            raise ValueError("the tensors of the outputs are not those that are described")
        return self


class Built(Letter):
    """The build child's answer: a result, or the fault of the machine that prevented one."""

    result: CompileResult | None = None
    trouble: Trouble | None = None


class BuildOrder(Letter):
    """Main to a build child: confine yourself, then build this source."""

    backend: Backend
    architecture: str
    device: int
    source: str
    seconds: float
    cell: Cell
    compiler: str = ""
    """Import path of a compiler that the user chose; empty: the backend's own."""
    python_path: list[str] = Field(default_factory=list)
    """Where it is looked for."""
