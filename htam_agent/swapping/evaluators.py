"""An evaluator of another package, its answers checked: what it raises is broken infrastructure in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from htam_agent.errors import InfrastructureError
from htam_agent.graph.context import DeepBench
from htam_agent.operator import OperatorProfile
from htam_agent.swapping.calling import answer_of, cleaned
from htam_agent.swapping.fitting import method_misfits
from htam_agent.swapping.protocols import Evaluator
from htam_agent.verdict import Ceilings, CompileResult, DeviceFacts, ProfileResult, RunResult, Times

if TYPE_CHECKING:
    from htam_agent.runs.records import RunOptions
    from htam_agent.swapping.protocols import EvaluatorFactory
    from htam_agent.task import Task
    from htam_agent.words import Policy

T = TypeVar("T")
WHAT = "The evaluator of tools.evaluator"


class CheckedEvaluator:
    """Passes every call on. `operator`, `device`, `ceilings` and `policy` are read when it was opened."""

    operator: OperatorProfile
    device: DeviceFacts
    ceilings: Ceilings
    policy: Policy

    def __init__(self, inner: Evaluator) -> None:
        self.inner = inner

    def open(self) -> OperatorProfile:
        """Raises InfrastructureError when it fails, or a fact is missing or of another type afterwards."""
        self.operator = answer_of(self.inner.open, OperatorProfile, f"{WHAT}, in open,")
        self.device = self._fact("device", DeviceFacts)
        self.ceilings = self._fact("ceilings", Ceilings)
        self.policy = cast("Policy", self._fact("policy", str))
        return self.operator

    def _fact(self, name: str, kind: type[T]) -> T:
        return answer_of(lambda: getattr(self.inner, name), kind, f"{WHAT}, asked for its {name},")

    def baselines(self) -> Times:
        return answer_of(self.inner.baselines, Times, f"{WHAT}, in baselines,")

    def use_baselines(self, times: Times) -> None:
        answer_of(lambda: self.inner.use_baselines(times), object, f"{WHAT}, in use_baselines,")

    def close(self) -> None:
        answer_of(self.inner.close, object, f"{WHAT}, in close,")

    def compile(self, source: Path) -> CompileResult:
        return answer_of(self.inner.compile, CompileResult, f"{WHAT}, in compile,", source)

    def run(self, compiled: CompileResult, *, timing: bool = True) -> RunResult:
        return answer_of(lambda: self.inner.run(compiled, timing=timing), RunResult, f"{WHAT}, in run,")

    def profile(self, compiled: CompileResult, run: RunResult) -> ProfileResult:
        return cleaned(answer_of(self.inner.profile, ProfileResult, f"{WHAT}, in profile,", compiled, run))


class CheckedDeepEvaluator(CheckedEvaluator):
    """One that has deep checks too."""

    def deep(self, compiled: CompileResult, result: RunResult) -> RunResult:
        deep = cast("DeepBench", self.inner).deep
        return answer_of(deep, RunResult, f"{WHAT}, in deep,", compiled, result)


def made_evaluator(factory: EvaluatorFactory, task: Task, options: RunOptions, folder: Path) -> CheckedEvaluator:
    """The evaluator of one task. Raises InfrastructureError when it cannot be made or lacks a method."""
    made = answer_of(factory, object, WHAT, task, options, folder)
    problems = method_misfits(made, Evaluator, type(made).__name__)
    if problems:
        raise InfrastructureError(
            f"{WHAT} does not fit: {'; '.join(problems)}.",
            "It must fit htam_agent.swapping.protocols.Evaluator (docs/swapping.md).",
            "tool-misfit",
        )
    kind = CheckedDeepEvaluator if isinstance(made, DeepBench) else CheckedEvaluator
    return kind(cast("Evaluator", made))
