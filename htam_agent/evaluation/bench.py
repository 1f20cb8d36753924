"""Bench: one task on one backend, with its harness processes warm for as long as it is open.

Nothing of the user's task and no candidate ever runs in this process, and torch is not imported here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from htam_agent.backends.base import Backend as DeviceBackend
from htam_agent.backends.registry import require_backend
from htam_agent.errors import InfrastructureError, TaskError, WorkerError
from htam_agent.evaluation.baselines import measure_baselines, missing_reason
from htam_agent.evaluation.channel import Garbled
from htam_agent.evaluation.compiling import compile_candidate
from htam_agent.evaluation.evaluation import Evaluation, not_run
from htam_agent.evaluation.exclusions import excluded_protocols
from htam_agent.evaluation.files import tail
from htam_agent.evaluation.hangs import HangMemory
from htam_agent.evaluation.hung import remember, remembered
from htam_agent.evaluation.judge import REFERENCE_KILLED, MachineFault, Reference, raise_trouble
from htam_agent.evaluation.messages import Ask, Load, Loaded, Told
from htam_agent.evaluation.policy import default_policy
from htam_agent.evaluation.process import Gone, Harness, Hung
from htam_agent.evaluation.session import Limits, Seeds, Session
from htam_agent.evaluation.spares import WANTED, Spares
from htam_agent.evaluation.visible import visible_device
from htam_agent.operator import OperatorProfile
from htam_agent.task import Task
from htam_agent.tools.diagnose import fractions_of_floor
from htam_agent.verdict import Ceilings, Check, CompileResult, DeviceFacts, ProfileResult, RunResult, Times
from htam_agent.words import Backend, Policy, Precision, Protocol, Stage, Verdict

if TYPE_CHECKING:
    from htam_agent.swapping.compilers import OtherCompiler

__all__ = ["Bench", "Limits", "evaluate_files"]


class Bench:
    """One task on one backend. A context manager; `open` may also be called by hand.

    `folder` holds the candidates' own folders and the logs. `protocol` decides; `protocols` get a verdict besides, by
    default those whose trials `protocol` runs anyhow. `policy` None: by the contract, from the traced operators. `seed`
    None: secret, from the system. `counters`: profiles read hardware counters too. `compile_baseline` None: on cuda
    yes, on cpp no. `device`: CUDA index. `warm_l2`: on CUDA, data stay in the L2 between timed calls, on both sides.
    `hang_memory`: a file that hung before under limits as long as these is refused at once. `compiler`: what builds in
    place of the backend's own.
    """

    operator: OperatorProfile
    device: DeviceFacts
    ceilings: Ceilings
    policy: Policy

    def __init__(
        self,
        task: Task,
        *,
        backend: Backend,
        precision: Precision = "tf32",
        protocol: Protocol = "strict",
        protocols: Sequence[Protocol] | None = None,
        policy: Policy | None = None,
        seed: int | None = None,
        folder: Path,
        limits: Limits | None = None,
        compile_baseline: bool | None = None,
        warm_l2: bool = False,
        device: int = 0,
        counters: bool = False,
        hang_memory: bool = True,
        compiler: OtherCompiler | None = None,
    ) -> None:
        self.task = task
        self.backend: Backend = backend
        self.precision: Precision = precision
        self.protocol: Protocol = protocol
        self.protocols: tuple[Protocol, ...] = tuple(dict.fromkeys([protocol, *(protocols or cheap_beside(protocol))]))
        self.folder = folder
        self.limits = limits or Limits()
        self._wanted_policy = policy
        self._seeds = Seeds(seed)
        self._warm_l2 = warm_l2
        self._compile_baseline = backend == "cuda" if compile_baseline is None else compile_baseline
        self._index = device
        self._counters = counters
        self._hang_memory = hang_memory
        self._compiler = compiler
        self._harness: Harness | None = None
        self._session: Session | None = None
        self._spares = Spares(WANTED[backend])
        self._descriptors: list[int] = []
        self._baselines: Times | None = None
        self.baseline_reason = ""
        """Why a baseline is null; empty when none is."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> OperatorProfile:
        """Starts the processes, loads and traces the task. An open bench is left as it is.

        Raises BackendUnavailable, TaskError (the task is at fault), and WorkerError (the machine is).
        """
        if self._session is not None:
            return self.operator
        backend = self._backend()
        (self.folder / "candidates").mkdir(parents=True, exist_ok=True)
        visible = visible_device(self.backend == "cuda", self._index)
        self._harness = Harness(self.folder / "harness.log", visible.names)
        try:
            reference, loaded = self._load(self._harness, visible.device)
            loaded = self._leave_out(loaded)
            self.operator = loaded.operator
            self.policy = self._wanted_policy or default_policy(self.operator)
            self.device = backend.device_facts()
            self.ceilings = backend.ceilings()
            loaded = loaded.model_copy(update={"bandwidth": self.ceilings.dram_bytes_per_second})
        except BaseException:
            self.close()
            raise
        self._session = Session(
            backend=backend,
            device_name=visible.device,
            visible=visible,
            index=self._index,
            precision=self.precision,
            protocol=self.protocol,
            protocols=self.protocols,
            policy=self.policy,
            limits=self.limits,
            folder=self.folder,
            harness=self._harness,
            reference=reference,
            loaded=loaded,
            descriptors=self._descriptors,
            seeds=self._seeds,
            spares=self._spares,
            warm_l2=self._warm_l2,
            hangs=HangMemory() if self._hang_memory else None,
        )
        self._refill(self._session)
        return self.operator

    def _backend(self) -> DeviceBackend:
        """The backend, whose sources another compiler builds where one was given. Raises BackendUnavailable."""
        found = require_backend(self.backend, device=self._index)
        if self._compiler is None:
            return found
        from htam_agent.swapping.compilers import CompiledBy

        return CompiledBy(found, self._compiler)

    def _leave_out(self, loaded: Loaded) -> Loaded:
        """Protocols that leave this task out give no verdict, and a check says so. Raises TaskError for the one that
        decides."""
        excluded = excluded_protocols(self.task)
        if self.protocol in excluded:
            raise TaskError(
                f"The protocol {self.protocol} gives no verdict on the task {self.task.name!r}: "
                f"{excluded[self.protocol]}.",
                "Choose another protocol, such as strict.",
                "task-excluded",
            )
        out = [name for name in self.protocols if name in excluded]
        self.protocols = tuple(name for name in self.protocols if name not in excluded)
        checks = [Check(name=f"protocol {name}", passed=True, detail=excluded[name]) for name in out]
        return loaded.model_copy(update={"notes": [*loaded.notes, *checks]})

    def _load(self, harness: Harness, device_name: str) -> tuple[Reference, Loaded]:
        log = self.folder / "reference.log"
        worker = harness.spawn("reference", log)
        order = Load(
            task=self.task,
            backend=self.backend,
            device=device_name,
            precision=self.precision,
            seed=self._seeds.draw(),
            python_path=[str(Path(entry).resolve()) for entry in sys.path],
            threads=len(os.sched_getaffinity(0)),
        )
        seconds = self.limits.load_seconds + self.limits.run_seconds
        try:
            told, self._descriptors = worker.ask_for_buffers(Ask(load=order), Told, seconds)
        except Hung as error:
            raise TaskError(
                f"The task {self.task.name!r} was not loaded and run once within {seconds:g} s.",
                "Use smaller inputs, or a longer limit (the setting run_seconds).",
                "task-timeout",
            ) from error
        except (Gone, Garbled) as error:
            raise TaskError(
                f"The task {self.task.name!r} ended the process that loads it: {error}. {tail(log, 500)}",
                "If it was killed for memory, use smaller inputs; a task's file must not end its process.",
                "task-crash",
            ) from error
        raise_trouble(told)
        assert told.loaded is not None, "a load is answered by a loaded"
        return Reference(worker, self.limits.run_seconds), told.loaded

    def close(self) -> None:
        """Ends every process of this bench; closing twice is fine."""
        if self._harness is not None:
            self._harness.close()
        self._spares.close()
        self._harness = None
        self._session = None
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def baselines(self) -> Times:
        """Milliseconds of the reference under each opponent's flags, the best of them, and the floor; measured once."""
        session = self._opened()
        if self._baselines is None:
            session.quiet()
            self._baselines, self.baseline_reason = measure_baselines(session, self.ceilings, self._compile_baseline)
        return self._baselines

    def use_baselines(self, times: Times) -> None:
        """Takes over what an earlier bench measured for the same task on the same device (a resumed run)."""
        self._baselines = times
        self.baseline_reason = missing_reason(times)

    def compile(self, source: Path) -> CompileResult:
        """Reads a candidate file, checks its text against the policy and builds its kernel source, confined.

        The file and its binary come to lie in a folder of their own. Nothing of the file is run.
        """
        return compile_candidate(self._opened(), source)

    def compile_for(self, backend: DeviceBackend, source: Path) -> CompileResult:
        """As `compile`, for another backend than this bench's (kernels of a GPU that this machine lacks): built, never
        run."""
        return compile_candidate(replace(self._opened(), backend=backend), source)

    def run(self, compiled: CompileResult, *, timing: bool = True) -> RunResult:
        """Judges and times one candidate in a process of its own.

        Every failure of the candidate is a verdict. Raises WorkerError when the harness itself fails.
        """
        session = self._opened()
        if not compiled.ok:
            return not_run(compiled, self.protocols)
        hung = remembered(session, compiled)
        if hung is not None:
            return hung
        baselines = self.baselines() if timing else None
        result = Evaluation(session, compiled, baselines, self.baseline_reason).run()
        remember(session, compiled, result)
        self._refill(session)
        return result.model_copy(update={"fractions": fractions_of_floor(result.times_ms)})

    def _refill(self, session: Session) -> None:
        with contextlib.suppress(WorkerError):  # a verdict stands; the next candidate is told of a dead harness
            session.spares.refill(session)

    def deep(self, compiled: CompileResult, result: RunResult) -> RunResult:
        """The deep checks of a candidate that `run` found correct (another result is returned as it is): other shapes,
        sanitizers, counters. A failed one changes the verdict; what cannot be done here is said in its check.
        """
        from htam_agent.evaluation.deep.checks import DeepChecks

        return DeepChecks(self._opened(), compiled, result).run()

    def profile(self, compiled: CompileResult, run: RunResult) -> ProfileResult:
        """Where the candidate stands against the device's ceilings, in numbers and words; with hardware counters where
        this bench was made for them (cuda), which takes seconds."""
        from htam_agent.evaluation.deep.checks import DeepChecks
        from htam_agent.tools.diagnose import diagnose

        session = self._opened()
        note = ""
        if self._counters and self.backend == "cuda" and not run.counters:
            found, counters = DeepChecks(session, compiled, run).counters()
            run = run.model_copy(update={"counters": counters})
            note = "" if counters else f" No counters: {found.check.detail}."
        profile = diagnose(
            self.operator,
            run.times_ms,
            self.ceilings,
            self.device,
            compiled.kernels,
            run.launches,
            precision=self.precision,
            run=run,
        )
        return profile.model_copy(update={"diagnosis": profile.diagnosis + note})

    @property
    def notes(self) -> list[Check]:
        """Checks on the task itself: whether null kernels would pass, randomness, protocols that leave it out."""
        return list(self._opened().loaded.notes)

    @property
    def processes(self) -> tuple[int, int]:
        """Process ids of the zygote and of the reference worker."""
        session = self._opened()
        return session.harness.pid, session.reference.worker.pid

    def _opened(self) -> Session:
        if self._session is None:
            raise InfrastructureError(
                "The bench is not open.", "Call open() or use it in a with statement.", "bench-closed"
            )
        return self._session


def cheap_beside(protocol: Protocol) -> tuple[Protocol, ...]:
    """The protocols whose trials are among those of this one: their verdicts cost no further call."""
    return ("verified", "verified-fair") if protocol in ("strict", "verified", "verified-fair") else ()


def evaluate_files(
    new: Callable[[], Bench], kernels: Iterable[Path], *, timing: bool = True, deep: bool = False
) -> Generator[tuple[Bench, RunResult], None, None]:
    """The result of each candidate file, in order, with the bench that judged it; one bad file never fails the others.

    `new` makes a bench that is not open. `deep`: a correct candidate goes through the deep checks too. Where the
    harness, the task or the system fails under a candidate, that candidate is quarantined with the reason, and the next
    gets a fresh bench.

    Raises MachineFault when the machine is at fault (a reference that is killed for memory under one file may be that
    file's doing, under the next as well it is not), and TaskError, BackendUnavailable and WorkerError when a fresh
    bench fails on its own: its task cannot be loaded, run or timed.
    """
    bench, killed = new(), False
    try:
        bench.open()
        for kernel in kernels:
            bench.open()
            try:
                compiled = bench.compile(kernel)
            except OSError as error:
                result, failed = _quarantined(bench, "compile", f"its files could not be put in place: {error}"), True
            else:
                if compiled.ok and timing:
                    bench.baselines()
                result, failed = _judged(bench, compiled, killed, timing=timing, deep=deep)
            killed = failed
            yield bench, result
            if failed:
                bench.close()
                bench = new()
    finally:
        bench.close()


def _judged(bench: Bench, compiled: CompileResult, again: bool, *, timing: bool, deep: bool) -> tuple[RunResult, bool]:
    """The result, and whether the bench failed under the candidate (`again`: as under the one before).

    Raises MachineFault.
    """
    try:
        result = bench.run(compiled, timing=timing)
        return (bench.deep(compiled, result) if deep else result), False
    except MachineFault as error:
        if again or error.code != REFERENCE_KILLED:
            raise
        return _quarantined(bench, "run", f"the machine failed beside it: {error}"), True
    except WorkerError as error:
        return _quarantined(bench, "run", f"the harness failed: {error}"), True
    except TaskError as error:
        return _quarantined(bench, "run", f"the task failed beside it: {error}"), True
    except OSError as error:
        return _quarantined(bench, "run", f"its files could not be put in place: {error}"), True


def _quarantined(bench: Bench, stage: Stage, reason: str) -> RunResult:
    verdicts: dict[Protocol, Verdict] = dict.fromkeys(bench.protocols, "quarantined")
    return RunResult(
        verdict="quarantined",
        stage=stage,
        reason=reason,
        infrastructure=True,
        protocols=verdicts,
        checks=[Check(name=stage, passed=False, detail=reason)],
    )
