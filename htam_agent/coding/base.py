"""The Coder seam: what a coder is asked and what it answers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pydantic import Field

from htam_agent.coding.plan import Plan
from htam_agent.memory.model import Direction, ScoredStrategy
from htam_agent.operator import OperatorProfile
from htam_agent.verdict import Ceilings, DeviceFacts, Failure, Interval, ProfileResult, Times
from htam_agent.words import Backend, Policy, Precision, Record


class BestSoFar(Record):
    """The best correct kernel so far."""

    source: str
    plan: Plan | None
    times_ms: Times
    profile: ProfileResult | None = None
    speedup: float | None = None
    """Over the best baseline, measured beside it."""
    interval: Interval | None = None


class CodeRequest(Record):
    """Everything a coder may look at. `strategies` are ranked, best first; `index` picks among equals when several
    candidates are written side by side: its place among them."""

    task_source: str
    operator: OperatorProfile
    backend: Backend
    device: DeviceFacts
    ceilings: Ceilings | None = None
    precision: Precision
    policy: Policy
    direction: Direction | None = None
    """None: the memory mode gives the coder no direction."""
    direction_why: str = ""
    strategies: list[ScoredStrategy]
    baselines: Times | None = None
    """What was measured before the first step: the times to beat."""
    best: BestSoFar | None = None
    history: list[str] = Field(default_factory=list)
    """One line for each earlier step: direction, strategy, verdict, speedup."""
    step: int = 1
    index: int = 0


class RepairRequest(Record):
    """A failed attempt of the same step. `tried` are the strategies already used in it, the last one at fault."""

    request: CodeRequest
    source: str
    plan: Plan | None
    failure: Failure
    tried: list[str]
    attempt: int


class Code(Record):
    """A coder's answer: a candidate file, or a refusal with its reason (`source` empty)."""

    source: str = ""
    strategy: str = ""
    plan: Plan | None = None
    note: str = ""
    refusal: str = ""
    """Why there is no source, e.g. "the template coder cannot render aten.convolution"."""
    hopeless: bool = False
    """With a refusal: no other direction can help either, since the operator itself is beyond this coder."""
    moved_bytes: int | None = None
    """Bytes that the kernel moves through memory by its plan; None where there is no plan."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens_estimated: bool = False
    seconds: float = 0.0


@runtime_checkable
class Coder(Protocol):
    """Writes candidates. Implementations: TemplateCoder (no model) and ModelCoder."""

    name: str

    def initial_plan(self, operator: OperatorProfile, backend: Backend) -> Plan | None:
        """The plan that the first step edits; None where the coder has no plans or cannot render the operator."""
        ...

    def generate(self, request: CodeRequest) -> Code:
        """A first candidate of the step."""
        ...

    def repair(self, request: RepairRequest) -> Code:
        """Another candidate of the same step after a failure."""
        ...
