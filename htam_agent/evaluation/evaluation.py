"""From a built candidate to a RunResult: one worker, one verdict."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from htam_agent.backends.nvml import snapshot
from htam_agent.errors import TaskError, WorkerError
from htam_agent.evaluation.baselines import ranked_variants
from htam_agent.evaluation.clock_checks import clock_checks
from htam_agent.evaluation.clocking import Clocking
from htam_agent.evaluation.entering import occupy
from htam_agent.evaluation.files import tail
from htam_agent.evaluation.judge import Stop, Subject
from htam_agent.evaluation.latency import measure_latency
from htam_agent.evaluation.messages import Variant
from htam_agent.evaluation.own_work import OwnWork
from htam_agent.evaluation.plans import regime_of
from htam_agent.evaluation.rounds import Rounds
from htam_agent.evaluation.session import Session
from htam_agent.evaluation.sides import NoTimes, Sides
from htam_agent.evaluation.timing import device_lock, to_interval
from htam_agent.evaluation.verification import Verification
from htam_agent.verdict import BothSides, Check, CompileResult, GpuState, RunResult, Speedups, Times
from htam_agent.words import Protocol, Stage, Verdict

BANDWIDTH_MARGIN = 1.05


def not_run(compiled: CompileResult, protocols: Sequence[Protocol]) -> RunResult:
    """The verdict of a candidate that was not built."""
    return RunResult(
        verdict="failed",
        stage=compiled.stage,
        reason=compiled.reason or "it was not built",
        protocols=dict.fromkeys(protocols, "failed"),
        speedup=Speedups(reason="it was not built"),
        checks=[Check(name=compiled.stage, passed=False, detail=compiled.log[:2000])],
        seconds=compiled.seconds,
    )


class Evaluation:
    """One run of one candidate. `baselines` None: it is judged and not timed."""

    def __init__(
        self, session: Session, compiled: CompileResult, baselines: Times | None, baseline_reason: str
    ) -> None:
        self._session = session
        self._compiled = compiled
        self._baselines = baselines
        self._baseline_reason = baseline_reason
        self._rounds: Rounds | None = None
        self._own_work: OwnWork | None = None
        self._facts: dict[str, object] = {}
        self._not_timed: list[str] = []
        self._best_ms: float | None = None

    def run(self) -> RunResult:
        """The verdict. Raises WorkerError when the harness, not the candidate, fails."""
        started = time.monotonic()
        session = self._session
        stages = session.reference.stages
        stages.take()
        with stages.stage("spawn"):
            entered = occupy(session, self._compiled)
        self._entered, subject = entered, entered.subject
        self._verification = Verification(
            session.reference,
            subject,
            session.loaded,
            session.policy,
            session.protocols,
            session.seeds.draw(),
        )
        stop: Stop | None = None
        try:
            entered.start()
            renamed = entered.renamed
            self._verification.checks.append(Check(name="state-dict", passed=not renamed, detail=renamed))
            self._verification.run()
            if self._verdict() == "correct":
                self._judge_work(subject)
        except Stop as reason:
            stop = reason
        except TaskError as error:
            if error.code != "task-too-large":
                raise
            stop = Stop("failed", "run", f"task too large: {error.message}")
        finally:
            with stages.stage("end"):
                entered.leave()
        seconds = time.monotonic() - started
        counted = {"compile": self._compiled.seconds, **stages.take()}
        return self._result(stop).model_copy(update={"seconds": seconds, "stages": counted})

    def _judge_work(self, subject: Subject) -> None:
        """Whether the output comes from the candidate's own kernels, and how fast it comes."""
        timing, stages = self._baselines is not None, subject.stages
        self._own_work = OwnWork(self._session, self._compiled, self._entered, self._verification)
        with stages.stage("own work"):
            self._own_work.without_kernels(timing=timing)
        if timing:
            self._time(subject)
        with stages.stage("own work"):
            self._own_work.afterwards(timed=timing)

    def _verdict(self) -> Verdict:
        return self._verification.verdicts[self._session.protocol]

    def _time(self, subject: Subject) -> None:
        session = self._session
        assert self._baselines is not None, "only a timed evaluation comes here"
        loaded = session.loaded
        cold = not session.warm_l2
        stateful = any(entry.changes for entry in loaded.blueprint.state)
        session.quiet()
        with device_lock(session.lock) as waited:
            subject.extend(waited)
            subject.stages.seconds["wait for the device"] = waited
            before = self._gpu_state()
            self._rounds, variant = self._against_the_best(subject, stateful=stateful, cold=cold)
            checks, distrust = clock_checks(
                self._rounds, session.loaded, self._entered.clock, cold=cold, alone=loaded.writes_inputs or stateful
            )
            self._verification.checks.extend(checks)
            distrust = distrust or self._too_fast(statistics.median(self._rounds.candidate))
            if distrust:
                raise Stop("quarantined", "time", distrust)
            self._facts = self._call_facts(
                Sides(session.reference, subject, variant, self._rounds.kind, regime_of(session.protocol))
            )
            self._facts.update(gpu_before=before, gpu_after=self._gpu_state())

    def _against_the_best(self, subject: Subject, *, stateful: bool, cold: bool) -> tuple[Rounds, Variant]:
        """The rounds against the fastest opponent that can be timed now, and which that is.

        Raises Stop, and WorkerError where none can be timed.
        """
        session = self._session
        assert self._baselines is not None, "only a timed evaluation comes here"
        for variant in ranked_variants(self._baselines):
            clocking = Clocking(
                session.reference,
                subject,
                self._verification,
                session.protocol,
                session.loaded.blueprint,
                session.seeds.draw(),
                writes_inputs=session.loaded.writes_inputs,
                aliases_inputs=session.loaded.aliases_inputs,
                stateful=stateful,
                cold=cold,
            )
            try:
                rounds = clocking.run(variant)
            except NoTimes as error:
                self._not_timed.append(f"{variant}, the fastest opponent before, could not be timed again: {error}")
                continue
            # All opponents were measured side by side at the start: this one is what the others are compared with.
            self._best_ms = getattr(self._baselines, variant) or self._baselines.best
            return rounds, variant
        why = "; ".join(self._not_timed)
        raise WorkerError(f"The reference cannot be timed: {why}.", "Look into the reference's log.", "no-times")

    def _gpu_state(self) -> GpuState | None:
        """Clocks, power and temperature of the device; None on a processor, or where nothing can be read."""
        return None if self._session.device_name == "cpu" else snapshot(self._session.index)

    def _call_facts(self, sides: Sides) -> dict[str, object]:
        """What a call costs its caller on both sides."""
        assert self._rounds is not None, "asked after the rounds"
        rounds = self._rounds
        device_ms = BothSides(
            candidate=statistics.median(rounds.candidate), reference=statistics.median(rounds.reference)
        )
        # As claimed, before an outer time that holds the host's part was put in its place.
        claimed_ms = device_ms.model_copy(update={"candidate": statistics.median(rounds.claimed)})
        latency = measure_latency(sides, claimed_ms, rounds.slots, rounds.kind, host_bound=rounds.host_bound)
        if latency.note:
            self._verification.checks.append(Check(name="graph", passed=True, detail=f"not replayed: {latency.note}"))
        return {
            "device_ms": device_ms,
            "call_ms": latency.call_ms,
            "launch_bound": latency.launch_bound,
            "graph_ms": latency.graph_ms,
        }

    def _too_fast(self, milliseconds: float) -> str:
        """Why a time is impossible with a cold L2; empty when it is not, or nothing is known of the memory."""
        bandwidth = self._session.loaded.bandwidth
        needed = self._session.loaded.operator.unavoidable_bytes
        if self._session.warm_l2 or not bandwidth or needed / (milliseconds / 1e3) <= BANDWIDTH_MARGIN * bandwidth:
            return ""
        return (
            f"{milliseconds:.4g} ms would move the {needed / 1e6:.4g} unavoidable megabytes faster than the memory can "
            f"({bandwidth / 1e12:.3g} TB/s)"
        )

    def _result(self, stop: Stop | None) -> RunResult:
        protocols = self._protocols(stop)
        deciding = self._session.protocol
        verdict = protocols[deciding]
        stage: Stage = "time" if self._rounds is not None else "verify"
        reason = "" if verdict == "correct" else self._verification.reasons.get(deciding, "")
        if stop is not None and verdict == stop.verdict:
            stage, reason = stop.stage, stop.reason
        checks = [*self._session.loaded.notes, *self._verification.checks]
        if stop is not None:
            evidence = stop.evidence or tail(self._entered.log)
            checks.append(Check(name=stop.stage, passed=False, detail="\n".join(filter(None, (stop.reason, evidence)))))
        difference = self._verification.differences.get(deciding) if verdict == "wrong" else None
        if difference is not None:
            checks.append(Check(name="difference", passed=False, detail=difference.words()))
        left_behind = self._entered.left_behind
        if left_behind:
            detail = f"{left_behind} processes that it left behind were killed"
            checks.append(Check(name="left-over-processes", passed=False, detail=detail))
        result = RunResult(
            verdict=verdict,
            stage=stage,
            reason=reason,
            difference=difference,
            protocols=protocols,
            checks=checks,
            speedup=Speedups(reason="it was not timed" if verdict == "correct" else f"the verdict is {verdict}"),
            launches=self._verification.launches,
            confinement=self._entered.active,
            confinement_missing=self._entered.missing,
            own_share=self._own_work.share if self._own_work is not None else None,
        )
        if verdict != "correct" or self._rounds is None:
            return result
        return result.model_copy(update=self._figures())

    def _protocols(self, stop: Stop | None) -> dict[Protocol, Verdict]:
        """What had been found wrong stays wrong; everything else shares the fate of a process that stopped."""
        verdicts = dict(self._verification.verdicts)
        if stop is None:
            return verdicts
        if stop.verdict == "wrong":
            return verdicts
        return {name: stop.verdict if verdict == "correct" else verdict for name, verdict in verdicts.items()}

    def _figures(self) -> dict[str, object]:
        """Times, speedups and the interval of a correct candidate."""
        assert self._rounds is not None
        assert self._baselines is not None
        rounds, baselines = self._rounds, self._baselines
        ratio = statistics.median(rounds.ratios)
        interval = to_interval(rounds.ratios)
        known = self._best_ms

        def against(time_ms: float | None) -> float | None:
            # Opponents were measured side by side at the start; the best one again beside the candidate.
            return None if time_ms is None or not known else ratio * time_ms / known

        missing = "" if interval is not None else "too few rounds for an interval within the limits"
        return {
            **self._facts,
            "times_ms": baselines.model_copy(
                update={"candidate": statistics.median(rounds.candidate), "best": statistics.median(rounds.reference)}
            ),
            "speedup": Speedups(
                eager=against(baselines.eager),
                eager_tf32=against(baselines.eager_tf32),
                compile=against(baselines.compile),
                best=ratio,
                reason="; ".join(filter(None, (self._baseline_reason, *self._not_timed, missing))),
            ),
            "interval": interval,
            "faster": interval is not None and interval.low > 1.0,
        }
