"""The built-in evaluator with a compiler, a judge or a profiler of the user's, each said in the result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.evaluation.bench import Bench
from htam_agent.swapping.calling import answer_of, cleaned
from htam_agent.swapping.protocols import ProfileRequest, RunRequest
from htam_agent.tools.diagnose import fractions_of_floor
from htam_agent.verdict import Check, CompileResult, ProfileResult, RunResult

if TYPE_CHECKING:
    from htam_agent.swapping.compilers import OtherCompiler
    from htam_agent.swapping.protocols import Profiler, Runner


@dataclass(frozen=True)
class Swapped:
    """What replaces parts of the evaluator; labels are as the settings name them."""

    compiler: OtherCompiler | None = None
    runner: Runner | None = None
    runner_label: str = ""
    profiler: Profiler | None = None
    profiler_label: str = ""


class SwappedBench(Bench):
    """A bench whose builds, verdicts or profiles come from elsewhere. What was not swapped is the built-in one."""

    swapped = Swapped()

    def run(self, compiled: CompileResult, *, timing: bool = True) -> RunResult:
        """See Bench.run. Raises InfrastructureError when another judge fails or answers something else."""
        if self.swapped.runner is None or not compiled.ok:
            result = super().run(compiled, timing=timing)
        else:
            what = f"The judge {self.swapped.runner_label!r}"
            answer = answer_of(self.swapped.runner.run, RunResult, what, self._run_request(compiled, timing))
            result = answer.model_copy(update={"fractions": fractions_of_floor(answer.times_ms)})
        return result.model_copy(update={"checks": [*result.checks, *self._notes()]})

    def profile(self, compiled: CompileResult, run: RunResult) -> ProfileResult:
        """See Bench.profile. Raises InfrastructureError when another profiler fails or answers something else."""
        if self.swapped.profiler is None:
            return super().profile(compiled, run)
        request = ProfileRequest(
            task=self.task.spelled,
            kernel=_kernel(compiled),
            backend=self.backend,
            precision=self.precision,
            operator=self.operator,
            device=self.device,
            ceilings=self.ceilings,
            compiled=compiled,
            run=run,
        )
        what = f"The profiler {self.swapped.profiler_label!r}"
        return cleaned(answer_of(self.swapped.profiler.profile, ProfileResult, what, request))

    def _run_request(self, compiled: CompileResult, timing: bool) -> RunRequest:
        return RunRequest(
            task=self.task.spelled,
            kernel=_kernel(compiled),
            backend=self.backend,
            precision=self.precision,
            protocol=self.protocol,
            policy=self.policy,
            compiled=compiled,
            baselines=self.baselines() if timing else None,
        )

    def _notes(self) -> list[Check]:
        """Who built and judged, where it was not this program's own."""
        notes = []
        if self.swapped.compiler is not None:
            detail = f"built by {self.swapped.compiler.label}; the file alone builds with {self.default_compiler}"
            notes.append(Check(name="compiler", passed=True, detail=detail))
        if self.swapped.runner is not None:
            detail = f"judged by {self.swapped.runner_label}, not by the built-in evaluator"
            notes.append(Check(name="judge", passed=True, detail=detail))
        return notes

    @property
    def default_compiler(self) -> str:
        """What the launcher in a candidate's file calls where nothing is prebuilt."""
        return "NVRTC" if self.backend == "cuda" else "g++"


def _kernel(compiled: CompileResult) -> Path:
    """The copy of the candidate's file that was checked and built."""
    return Path(compiled.folder) / "candidate.py"
