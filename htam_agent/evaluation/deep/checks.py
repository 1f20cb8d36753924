"""All deep checks of one candidate that was found correct."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from htam_agent.errors import HtamError
from htam_agent.evaluation.deep.cpu_tools import address_check
from htam_agent.evaluation.deep.finding import Found, not_done
from htam_agent.evaluation.deep.gpu_tools import counter_check, sanitizer_checks
from htam_agent.evaluation.deep.records import DeepPrepare, DeepPrepared, ShapeCase
from htam_agent.evaluation.deep.sanitizer import TOOLS
from htam_agent.evaluation.deep.shapes import RUN_SECONDS, ShapeRuns
from htam_agent.evaluation.deep.workplace import Workplace
from htam_agent.evaluation.messages import Ask
from htam_agent.evaluation.policy import inspect_source
from htam_agent.evaluation.session import Session
from htam_agent.evaluation.timing import device_lock
from htam_agent.verdict import CompileResult, FloorFractions, KernelCounters, RunResult, Speedups

LARGEST_BYTES = 64 << 20
"""Of the inputs of one other shape, which cross in files."""
SMALL_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 16}
TOOL_ELEMENTS = {"cpu": 1 << 26, "cuda": 1 << 30}
"""A kernel that serves its own shape alone meets the sanitizers at that shape, up to so many elements of inputs."""


class DeepChecks:
    """The checks of one candidate in an open session: `run` gives what they make of its result."""

    def __init__(self, session: Session, compiled: CompileResult, result: RunResult) -> None:
        self._session = session
        self._compiled = compiled
        self._result = result
        self._counters: list[KernelCounters] = []

    def run(self) -> RunResult:
        """The result with a check for each deep one; the first that fails decides. A candidate that was not correct is
        returned as it is. What this machine cannot do is said in its check and changes nothing."""
        if self._result.verdict != "correct":
            return self._result
        started = time.monotonic()
        try:
            with Workplace(self._session, self._compiled) as place:
                found = list(self._found(place))
        except (HtamError, OSError) as error:
            found = [not_done("deep", str(error))]
        return self._judged(found, time.monotonic() - started)

    def counters(self) -> tuple[Found, list[KernelCounters]]:
        """Nsight Compute alone (for the profile)."""
        try:
            with Workplace(self._session, self._compiled) as place, device_lock(self._session.lock):
                return self._counted(place, self._prepare(place, 0))
        except (HtamError, OSError) as error:
            return not_done("ncu", str(error)), []

    def _found(self, place: Workplace) -> Iterator[Found]:
        session = self._session
        prepared = self._prepare(place, LARGEST_BYTES)
        if session.backend.name == "cpp":
            yield from self._on_cpu(place, prepared)
            return
        with device_lock(session.lock):
            shapes = self._shapes(place, prepared)
            found = shapes.run()
            yield found
            if found.verdict is not None:
                yield not_done("tools", "the verdict stands already")
                return
            case = shapes.for_tools(self._own(), TOOL_ELEMENTS["cuda"])
            # A file that builds its kernels itself builds them under every tool: the two that matter most.
            tools = TOOLS[:2] if self._compiled.deferred else TOOLS
            yield from sanitizer_checks(place, prepared, case, self._kernels(), tools)
            if self._compiled.deferred:
                yield not_done(", ".join(TOOLS[2:]), "the file builds its kernels itself, anew under each tool")
            found, self._counters = self._counted(place, prepared)
            yield found

    def _shapes(self, place: Workplace, prepared: DeepPrepared) -> ShapeRuns:
        building = self._session.limits.build_seconds if self._compiled.deferred else 0.0
        return ShapeRuns(place, self._session.reference, prepared, RUN_SECONDS + building)

    def _on_cpu(self, place: Workplace, prepared: DeepPrepared) -> Iterator[Found]:
        shapes = self._shapes(place, prepared)
        found = shapes.run()
        yield found
        if found.verdict is not None:
            yield not_done("tools", "the verdict stands already")
            return
        text = (Path(self._compiled.folder) / "candidate.py").read_text(encoding="utf-8")
        source = inspect_source(text, "cpp", self._session.policy).source
        yield from address_check(
            place, self._compiled, source, prepared, shapes.for_tools(self._own(), TOOL_ELEMENTS["cpu"])
        )

    def _prepare(self, place: Workplace, largest: int) -> DeepPrepared:
        session = self._session
        kind = "cpu" if session.device_name == "cpu" else "cuda"
        told = session.reference.ask(
            Ask(
                other_shapes=DeepPrepare(
                    folder=str(place.data),
                    seed=session.seeds.draw(),
                    largest_bytes=largest,
                    small_elements=SMALL_ELEMENTS[kind],
                )
            )
        )
        assert told.other_shapes is not None, "a question about other shapes is answered by them"
        return told.other_shapes

    def _counted(self, place: Workplace, prepared: DeepPrepared) -> tuple[Found, list[KernelCounters]]:
        return counter_check(place, prepared, self._own(), self._kernels())

    def _own(self) -> ShapeCase:
        """The task's own shape, with values that are drawn where the candidate runs: for a tool, which looks at no
        outputs."""
        plan = self._session.loaded.blueprint
        return ShapeCase(label="as given", inputs=plan.inputs, tensors=plan.input_tensors, given=True)

    def _kernels(self) -> list[str]:
        """Names of the candidate's own kernels, from its binary or from its launches; empty where they are not known (a
        file that builds itself)."""
        built = [kernel.name for kernel in self._compiled.kernels]
        return built or list(dict.fromkeys(launch.kernel for launch in self._result.launches))

    def _judged(self, found: list[Found], seconds: float) -> RunResult:
        result = self._result
        changes: dict[str, object] = {
            "checks": [*result.checks, *(item.check for item in found)],
            "counters": self._counters,
            "seconds": result.seconds + seconds,
            "stages": {**result.stages, "deep": seconds},
        }
        failed = next((item for item in found if item.verdict is not None), None)
        if failed is not None and failed.verdict is not None:
            reason = f"{failed.check.name}: {failed.check.detail}"
            # The protocols' own trials say nothing of this; strict is the one that promises it.
            protocols = dict(result.protocols)
            if "strict" in protocols:
                protocols["strict"] = failed.verdict
            changes |= {
                "verdict": failed.verdict,
                "stage": "verify",
                "reason": reason,
                "protocols": protocols,
                "speedup": Speedups(reason=f"the verdict is {failed.verdict}"),
                "interval": None,
                "faster": False,
                "fractions": FloorFractions(),
            }
        return result.model_copy(update=changes)
