"""Records of a run: its options, its steps, and the result that crosses the graph's border."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from htam_agent.coding.usage import ModelUse
from htam_agent.failures import FailureCause
from htam_agent.memory.model import ScoreTerm, WeighedExperience
from htam_agent.memory.modes import MemoryMode
from htam_agent.swapping.choices import ToolChoices
from htam_agent.task import Task
from htam_agent.verdict import Check, Interval, ProfileResult, Speedups, Times
from htam_agent.version import __version__
from htam_agent.words import Backend, Director, Judge, Pause, Policy, Precision, Protocol, Record, StepVerdict

if TYPE_CHECKING:
    from torch import Tensor, nn

    from htam_agent.settings import Settings

OPTIMIZE_SCHEMA: Literal["htam.optimize/1"] = "htam.optimize/1"


class RunOptions(Record):
    """The choices that define a run; stored in the run's folder, so that a resume goes on under the same ones."""

    backend: Backend
    coder: Literal["template", "model", "custom"] = "template"
    """`custom`: the one that the setting tools.coder names."""
    steps: int = Field(6, ge=1, le=1000)
    precision: Precision = "tf32"
    protocol: Protocol = "strict"
    policy: Policy | None = None
    """None: by the traced operators (library-allowed with a matmul, convolution or attention)."""
    memory_mode: MemoryMode = "full"
    candidates: int = Field(1, ge=1, le=16)
    repairs: int = Field(2, ge=0, le=16)
    """Repairs of one candidate in one step."""
    director: Director = "score"
    evaluator: Judge = "local"
    approve: tuple[Pause, ...] = ()
    seed: int = 0
    """Of selection. The evaluator's seeds are secret and are not derived from it."""
    max_seconds: float | None = None
    max_cost: float | None = None
    """US dollars that the run's models may cost."""
    max_tokens: int | None = None
    """Tokens that the run's models may take."""
    no_progress_steps: int = Field(4, ge=1)
    """Stop after so many steps in a row that did not improve the best kernel."""
    compile_baseline: bool | None = None
    warm_l2: bool = False
    deep: bool = False
    """The winner goes through the deep checks on cpp too; on cuda it always does."""
    profile: Literal["time", "ncu"] = "time"
    build_seconds: float = 60.0
    run_seconds: float = 60.0
    total_seconds: float = 300.0
    hang_memory: bool = True


class RunSettings(Record):
    """What a run reaches for outside its folder, stored so that a resume reaches for the same. The key never is."""

    memory: Path
    chroma_url: str | None = None
    strategies: tuple[Path, ...] = ()
    prompts: Path | None = None
    model: str | None = None
    base_url: str | None = None
    model_timeout_seconds: float = 180.0
    models: dict[str, str | int | float | None] = Field(default_factory=dict)
    """The other settings of the chat models by name, each role's among them; no key."""
    prices: Path | None = None
    record: Path | None = None
    replay: Path | None = None
    tools: ToolChoices = Field(default_factory=ToolChoices)
    withheld: tuple[str, ...] = ()
    """Addresses that were not stored, since they hold a user name, a password or a query: a resume takes them from its
    own settings."""

    @classmethod
    def of(cls, settings: Settings) -> RunSettings:
        """The settings of a run that starts now, with absolute paths."""
        models = _model_settings(settings)
        urls = {"chroma_url": settings.chroma_url, "base_url": settings.base_url}
        urls |= {name: str(url) for name, url in models.items() if name.endswith("base_url") and url is not None}
        withheld = tuple(name for name, url in urls.items() if url is not None and ("@" in url or "?" in url))
        return cls(
            memory=settings.memory.absolute(),
            chroma_url=None if "chroma_url" in withheld else settings.chroma_url,
            strategies=tuple(path.absolute() for path in settings.strategies),
            prompts=settings.prompts.absolute() if settings.prompts else None,
            model=settings.model,
            base_url=None if "base_url" in withheld else settings.base_url,
            model_timeout_seconds=settings.model_timeout_seconds,
            models={name: value for name, value in models.items() if name not in withheld},
            prices=settings.prices.absolute() if settings.prices else None,
            record=settings.record.absolute() if settings.record else None,
            replay=settings.replay.absolute() if settings.replay else None,
            tools=settings.tools,
            withheld=withheld,
        )

    def values(self) -> dict[str, object]:
        """The stored settings by name."""
        own = [name for name in type(self).model_fields if name not in ("withheld", "models", *self.withheld)]
        return {**{name: getattr(self, name) for name in own}, **self.models}


MODELS_APART = frozenset(
    {
        "model", "base_url", "model_timeout_seconds", "preflight", "max_cost", "max_tokens", "prices", "record",
        "replay",
    }
)  # fmt: skip
"""Settings of the models that a run stores under names of their own, among its options, or not at all."""


def _model_settings(settings: Settings) -> dict[str, str | int | float | None]:
    """The other ones but the keys."""
    from htam_agent.model_settings import ModelFields

    names = [name for name in ModelFields.model_fields if name not in MODELS_APART and not name.endswith("api_key")]
    return {name: getattr(settings, name) for name in names}


class RunManifest(Record):
    """What a run was started with: `run.json`."""

    schema_: Literal["htam.run/1"] = Field("htam.run/1", alias="schema", serialization_alias="schema")
    task: Task
    options: RunOptions
    settings: RunSettings | None = None
    """Null in a run that an embedding program began with a context of its own."""
    version: str
    """Of htam_agent."""
    created: str
    """UTC, ISO 8601."""

    @classmethod
    def begin(cls, task: Task, options: RunOptions, settings: RunSettings | None) -> RunManifest:
        """The manifest of a run that starts now."""
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(
            schema_="htam.run/1",
            task=task,
            options=options,
            settings=settings,
            version=__version__,
            created=created,
        )

    def is_of(self, task: Task, options: RunOptions) -> bool:
        """Whether a run of this task under these options is this run, wherever the task's file lies now. The seed does
        not tell: a context that is made anew for the same run may draw another one, and the run keeps its own."""
        same = (self.task.name, self.task.kind, self.task.symbol, self.task.digest)
        alike = options.model_copy(update={"seed": self.options.seed})
        return same == (task.name, task.kind, task.symbol, task.digest) and self.options == alike


class CandidateSummary(Record):
    """One candidate of a step as the report shows it."""

    index: int
    attempts: int
    strategy: str
    verdict: StepVerdict
    stage: str = ""
    reason: str = ""
    cause: FailureCause = "unknown"
    """What kind of fault it has, where it is not correct."""
    speedup: Speedups = Field(default_factory=Speedups)
    time_ms: float | None = None
    folder: str = ""
    """Relative to the run's folder."""


class Offered(Record):
    """A direction that a step could take, with its score (share of the remaining gap) and its reasons in words."""

    direction: str
    score: float
    why: str
    terms: tuple[ScoreTerm, ...] = ()
    """What the score is made of."""
    experiences: tuple[WeighedExperience, ...] = ()
    """The measured steps that weighed most."""


class Directed(Record):
    """Who chose a step's direction, among what, and what the choice cost."""

    by: Literal["score", "model", "user"]
    reason: str = ""
    """The model's own words."""
    structure: str = ""
    """How a model's choice was got: `json-schema` (the endpoint's structured output), `plain-json`, or `failed`."""
    note: str = ""
    """Why the score chose where a model was asked, or what the user declined."""
    tokens: int = 0
    seconds: float = 0.0


class StepRecord(Record):
    """One finished step. The fields up to `candidates` are those of the optimize object."""

    step: int
    direction: str
    why: str
    strategy: str
    verdict: StepVerdict
    reason: str = ""
    speedup: Speedups = Field(default_factory=Speedups)
    candidates: list[CandidateSummary] = Field(default_factory=list)
    improved: bool = False
    """True when the step made a new best kernel."""
    seconds: float = 0.0
    tokens: int = 0
    directed: Directed | None = None
    """Null in records of versions that did not say."""
    terms: tuple[ScoreTerm, ...] = ()
    """What the direction's score was made of: `why` in numbers."""
    experiences: tuple[WeighedExperience, ...] = ()
    """The measured steps that weighed most in it."""
    agent_seconds: float = 0.0
    """Of `seconds`, what the agent itself took: all but generating by a model, building, running and profiling."""
    models: list[ModelUse] = Field(default_factory=list)
    """What each role's model took in this step."""


class Cost(Record):
    """`usd` is null when a model's price is not known."""

    usd: float | None = 0.0
    tokens: int = 0
    seconds: float = 0.0
    models: list[ModelUse] = Field(default_factory=list)
    """What each role's model took; `tokens` and `usd` are the sums."""


class Result(Record):
    """What a run returns; the object that `htam optimize --json` prints. `kernel` is null when the original is kept."""

    schema_: Literal["htam.optimize/1"] = Field(OPTIMIZE_SCHEMA, alias="schema", serialization_alias="schema")
    run: str
    """The run's folder."""
    task: str
    backend: Backend
    device: str
    precision: Precision
    policy: Policy
    memory_mode: MemoryMode = "full"
    """What of the memory the run used."""
    verdict: StepVerdict
    reason: str = ""
    """Why the run stopped, and why there is no kernel where there is none."""
    unfinished: Literal["", "budget", "time", "model"] = ""
    """What stopped the run before its own end: its budget, its time, its model's endpoint. `htam resume` goes on."""
    kernel: str | None = None
    speedup: Speedups = Field(default_factory=Speedups)
    interval: Interval | None = None
    faster: bool = False
    times_ms: Times = Field(default_factory=Times)
    profile: ProfileResult | None = None
    checks: list[Check] = Field(default_factory=list)
    """What the last judgement of the kernel checked, the deep checks among it."""
    cost: Cost = Field(default_factory=Cost)
    steps: list[StepRecord] = Field(default_factory=list)
    source: Task | None = None
    """The task as it was given: what `load` rebuilds the constructor's arguments from."""

    def load(self, state: dict[str, Tensor] | None = None) -> nn.Module:
        """The kernel as a module: `ModelNew`, built with the task's constructor arguments, on the run's device.

        `state` is a state dict of the original model; without it the task's own freshly made parameters are taken. A
        kernel that names its parameters otherwise gets them in order.
        This runs the kernel's and the task's code in the calling process.

        Raises RunError when there is no kernel, its file is gone, or the state dict does not fit.
        """
        from htam_agent.runs.loading import load_kernel

        return load_kernel(self, state)

    def to_json(self) -> str:
        """One line of JSON in the contract's form."""
        return self.model_dump_json(by_alias=True)
