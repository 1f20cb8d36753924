"""The records of the Hierarchical Transition Graph: directions, strategies, transitions and experiences.

A *direction* is a coarse optimisation intent, a *strategy* a code-level way under one direction, a *transition* the
knowledge of going from one direction to the next, and an *experience* one measured step.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from htam_agent.coding.plan import Mapping, PlanEdit, Staging
from htam_agent.failures import FailureCause
from htam_agent.memory.modes import MemoryMode
from htam_agent.operator import OperatorClass, OperatorFeatures
from htam_agent.verdict import DeviceFacts
from htam_agent.words import Backend, Bottleneck, DType, Precision, Record, StepVerdict

SCHEMA_VERSION = 1
START = "start"
"""The pseudo-direction before the first step: transitions out of it say what to begin with."""


class Kept(Record):
    """Base of what the store keeps: JSON has no word for a number that is not finite, so that none comes in."""

    model_config = ConfigDict(allow_inf_nan=False)


class Direction(Kept):
    """A global node. `symptoms` maps a bottleneck to how well this direction answers it, 0 to 1."""

    id: str
    title: str
    intent: str
    when: str
    symptoms: dict[Bottleneck, Annotated[float, Field(ge=0.0, le=1.0)]] = Field(default_factory=dict)
    provenance: Literal["seed", "user", "learned"] = "seed"


class Preconditions(Record):
    """All set fields must hold. Row facts are those of OperatorFeatures, plan facts those of the best plan so far."""

    reductions_min: int | None = None
    reductions_max: int | None = None
    rows_min: int | None = None
    rows_max: int | None = None
    columns_min: int | None = None
    columns_max: int | None = None
    columns_multiple_of: int | None = None
    row_bytes_min: int | None = None
    row_bytes_max: int | None = None
    transcendentals_min: int | None = None
    dtypes: list[DType] | None = None
    operator_classes: list[OperatorClass] | None = None
    operators_any: list[str] | None = None
    """At least one of these ATen names ("aten.exp") occurs."""
    compute_capability_min: int | None = None
    """90 for sm_90; cuda only."""
    compute_capability_max: int | None = None
    architectures: list[str] | None = None
    """Of the device, as DeviceFacts names them: "sm_90", "x86_64"."""
    threads_min: int | None = None
    """CPU threads (cpp) or multiprocessors (cuda) of the device."""
    threads_max: int | None = None
    plan_mapping: list[Mapping] | None = None
    plan_staging: list[Staging] | None = None


class Strategy(Kept):
    """A local node: data, not code. `edit` changes the plan and `block` (Jinja, rendered by the template coder into the
    skeleton's `slot`) is the executable template, which a chat model is shown too."""

    id: str
    direction: str
    backend: Backend
    title: str
    how: str
    slot: str | None = None
    block: str = ""
    more_blocks: dict[str, str] = Field(default_factory=dict)
    """Further slots and their blocks, for ways that are worth something only together."""
    edit: PlanEdit = Field(default_factory=PlanEdit)
    preconditions: Preconditions = Field(default_factory=Preconditions)
    pitfalls: list[str] = Field(default_factory=list)
    prior: float = Field(0.2, ge=-1.0, le=1.0)
    """Share of the remaining gap that the step is expected to close before anything is measured (memory/share.py)."""
    source: str = ""
    """Where the advice, and a prior that differs from the default, come from (vendor guide, measurement)."""
    provenance: Literal["seed", "user", "learned"] = "seed"


class Transition(Kept):
    """An edge from one direction (or START) to another with its prior: the expected share of the remaining gap that the
    step closes, worth `pseudo_counts` observations."""

    source: str
    target: str
    when: str
    why: str
    risk: str
    prior: float = Field(ge=-1.0, le=1.0)
    pseudo_counts: float = Field(2.0, gt=0.0, le=1000.0)
    basis: str = ""
    """What the prior is argued from, with its source (traffic counts, vendor guide, measurement)."""
    provenance: Literal["seed", "user", "learned"] = "seed"

    @property
    def id(self) -> str:
        return f"{self.source}->{self.target}"


class Experience(Kept):
    """One judged attempt of a step. `id` is idempotent: f"{key of the run}:{step}:{candidate index}:{attempt}"; a
    replayed node rewrites the record."""

    id: str
    run: str
    """Key of the run: its folder's name and what tells it from another run of that name."""
    step: int
    candidate: int
    task: str
    """Task id: name and content hash."""
    features: OperatorFeatures
    precision: Precision
    bottleneck: Bottleneck
    """Of the best kernel before the step ("unknown" at the first)."""
    fraction_of_floor: float | None = None
    prefix: tuple[str, ...] = ()
    """Directions of the preceding steps, oldest first, nearest last."""
    direction: str
    strategy: str
    verdict: StepVerdict
    time_before_ms: float
    """Best correct time before the step (the reference's at the first)."""
    time_after_ms: float | None = None
    floor_ms: float | None = None
    prefix_outcomes: tuple[float, ...] = ()
    """Outcome of each step of the prefix, as in SelectionState; empty in records that were written without it."""
    steps_left: int | None = None
    """Steps that the run had left, this one included; None in records that were written without it."""
    seconds: float = 0.0
    """Of building and judging, and of asking a model."""
    tokens: int = 0
    usd: float | None = None
    """What the model's tokens cost; None where the price is not known. A step without a model costs 0 tokens."""
    reason: str = ""
    cause: FailureCause = "unknown"
    """What kind of fault a failed attempt had; "unknown" for a correct one too."""
    device: DeviceFacts
    """Where it was measured, with the versions of driver, compiler, torch and libraries."""
    created: str = ""
    """UTC, ISO 8601."""


TermName = Literal["fit", "strategies", "transition", "damping", "exploration", "draw"]


class ScoreTerm(Record):
    """One term of a direction's score: a share of the remaining gap.

    A term with `counts` above 0 enters the mean with that weight; one with 0 counts is added to the mean. So the score
    is the sum of counts * share over the sum of counts, plus the shares without counts, clipped to [-1, 1].
    """

    name: TermName
    share: float
    counts: float = Field(0.0, ge=0.0)
    detail: str = ""


class WeighedExperience(Record):
    """One measured step as it counted in a choice. `weight` is what it counted, 0 to 1, with `trust` (guard.py) in
    it; `share` is what the step closed of its gap."""

    id: str
    task: str
    device: str
    strategy: str
    verdict: StepVerdict
    share: float
    weight: float
    trust: float


class ScoredDirection(Record):
    """A direction with its score (expected share of the remaining gap closed), the terms that made it, and the
    experiences that weighed most, heaviest first; `why` says the same in words."""

    direction: str
    score: float
    why: str
    terms: tuple[ScoreTerm, ...] = ()
    experiences: tuple[WeighedExperience, ...] = ()


class ScoredStrategy(Record):
    strategy: Strategy
    score: float
    why: str


class SelectionState(Record):
    """What selection attends to."""

    task: str = ""
    """Task id, as in Experience: what was measured on this very task counts fully. Empty: no experience is its own."""
    run: str = ""
    """Key of the run, as in Experience."""
    backend: Backend
    features: OperatorFeatures
    operators: list[str]
    compute_capability: int | None = None
    device: DeviceFacts | None = None
    """Where the kernel will run; None: experiences of this device are not told from those of its architecture."""
    bottleneck: Bottleneck = "unknown"
    fraction_of_floor: float | None = None
    prefix: tuple[str, ...] = ()
    prefix_outcomes: tuple[float, ...] = ()
    """Outcome of each step of the prefix: share of the gap closed, negative for a failure."""
    tried: tuple[str, ...] = ()
    """Strategy ids already tried on the best kernel so far; they are not offered again."""
    plan_mapping: Mapping | None = None
    plan_staging: Staging | None = None
    plan_strategies: tuple[str, ...] = ()
    steps_left: int = 1
    seed: int = 0
    mode: MemoryMode = "full"
