"""What flows through the graph: ids, numbers and short text. Sources, logs and profiles lie in the run's folder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from htam_agent.runs.records import Directed, Result
from htam_agent.task import Task
from htam_agent.verdict import Failure, Speedups
from htam_agent.words import Bottleneck, Record, Verdict

AT_FLOOR = 0.95
"""Within 5 % of the floor there is nothing left to win that a measurement could show."""
PREFIX_LENGTH = 6
"""Steps that selection looks back on; older ones are on disk. Keeps a checkpoint's size constant."""


class Halt(Record):
    """Why a run stops before its own end: `budget` (dollars or tokens), `time`, `model` (its endpoint failed for good).
    It can be resumed."""

    kind: Literal["budget", "time", "model"]
    reason: str


class Candidate(Record):
    """One candidate of the current step. `status` says what happens to it next:

    planned -> generate; written -> compile; built -> run; correct -> profile; profiled, failed -> learn;
    broken -> repair.
    """

    step: int
    index: int
    opening: int = 0
    """Which opening of the step planned it."""
    attempt: int = 0
    turn: int = 0
    """Its place among the candidates that are written in the same round: they are written side by side, and each takes
    another one of the strategies that are left."""
    strategy: str = ""
    tried: tuple[str, ...] = ()
    """Strategies of this step's attempts, in order."""
    taken: tuple[str, ...] = ()
    """Strategies that the step's other candidates had tried before this attempt was planned."""
    status: Literal["planned", "written", "built", "correct", "profiled", "broken", "failed"] = "planned"
    verdict: Verdict | None = None
    speedup: Speedups = Field(default_factory=Speedups)
    time_ms: float | None = None
    failure: Failure | None = None
    halt: Halt | None = None
    """Why no coder could be asked for this attempt."""
    hopeless: bool = False
    """The coder refused, and would refuse in any direction."""
    tokens: int = 0
    tool_seconds: float = 0.0
    """Spent in generating, building, running and profiling."""

    @property
    def key(self) -> str:
        """ "step/index": the key in the state's `candidates`."""
        return f"{self.step}/{self.index}"


class Best(Record):
    """The best correct kernel so far: where it lies and how it stands."""

    step: int
    index: int
    attempt: int
    time_ms: float
    speedup: Speedups
    bottleneck: Bottleneck = "unknown"
    fraction_of_floor: float | None = None


class Past(Record):
    """One earlier step as selection sees it."""

    direction: str
    strategy: str
    outcome: float
    """Share of the remaining gap closed; negative for a failure."""
    line: str
    """For people and models: direction, strategy, verdict, speedup."""


class Draft(Record):
    """The step under way."""

    step: int
    opening: int = 0
    """How often the step was opened before because the coder refused all of its strategies."""
    direction: str = ""
    why: str = ""
    directed: Directed | None = None
    """Who chose the direction."""
    strategies: tuple[str, ...] = ()
    """Retrieved strategy ids, best first."""
    started: float = 0.0
    """The state's `seconds` when the step was opened first."""


def merge_candidates(left: dict[str, Candidate], right: dict[str, Candidate]) -> dict[str, Candidate]:
    """Reducer: later entries win, and only the newest opening of the newest step is kept: checkpoints do not grow, and
    a candidate of an earlier opening does not come back."""
    merged = {**left, **right}
    newest = max(((candidate.step, candidate.opening) for candidate in merged.values()), default=(0, 0))
    return {key: candidate for key, candidate in merged.items() if (candidate.step, candidate.opening) == newest}


def longest(left: float, right: float) -> float:
    """Reducer: of nodes that ran side by side the one that took longest counts, as on a clock."""
    return max(left, right)


class InputState(TypedDict):
    """What a caller gives: a task, or its text as on the command line."""

    task: Task | str


class OutputState(TypedDict):
    """What a caller gets."""

    result: Result


class State(TypedDict, total=False):
    """The whole state."""

    task: Task
    result: Result
    run: str
    """The run's folder."""
    draft: Draft
    candidates: Annotated[dict[str, Candidate], merge_candidates]
    best: Best | None
    past: list[Past]
    """The last PREFIX_LENGTH steps, nearest last."""
    tried: list[str]
    """Strategies tried since the best kernel changed, and refused ones; not offered again."""
    idle_steps: int
    """Steps in a row without a better kernel."""
    seconds: Annotated[float, longest]
    """Time that the nodes took so far, over all processes of the run; pauses between them do not count."""
    tokens: int
    stop: str
    """Why the run ends; empty while it goes on."""
    halt: Halt | None
    """Set where that is before its own end."""
