"""The finish node's work: measure the winner again, fresh; export it; write the result and the report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.coding.usage import by_role, total_usd
from htam_agent.graph.context import DeepBench, context_of
from htam_agent.graph.events import emit
from htam_agent.graph.external import await_final
from htam_agent.graph.state import AT_FLOOR
from htam_agent.graph.toolbox import call_tool
from htam_agent.report.markdown import write_report
from htam_agent.runs.folder import write_atomically
from htam_agent.runs.records import CandidateSummary, Cost, Result, StepRecord
from htam_agent.verdict import CompileResult, ProfileResult, RunResult, Speedups

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

    from htam_agent.graph.context import Context, Session
    from htam_agent.graph.state import State
    from htam_agent.runs.records import RunOptions
    from htam_agent.task import Task

REMEASURED = 3
"""How many of the best candidates are measured again at most before the original is kept."""


def finish_run(state: State, runtime: Runtime[Context], session: Session) -> Result:
    """The result of the run. Nothing is taken from the run's own measurements: the kernel that is returned was judged
    again in a fresh process, under new secret seeds, and is not slower than the original."""
    started = time.monotonic()
    steps = _steps(session)
    best = state.get("best")
    emit(runtime, "finishing", "measuring the winner again in a fresh process" if best else "there is no winner")
    options = context_of(runtime).options
    folder, answer, reason = _confirmed(session, steps, options, state["task"])
    # A kernel at the floor that the original outruns says where the original is.
    at_floor = best is not None and answer is None and (best.fraction_of_floor or 0.0) >= AT_FLOOR
    at_floor = at_floor or any(step.verdict == "at-floor" for step in steps)
    reason = "; ".join(text for text in (state["stop"], reason) if text)
    common = Result(
        run=str(session.folder.root),
        task=state["task"].id,
        backend=options.backend,
        device=session.bench.device.name,
        precision=options.precision,
        policy=session.bench.policy,
        memory_mode=options.memory_mode,
        verdict="at-floor" if at_floor else "failed",
        reason=reason,
        speedup=Speedups(reason=f"the original is kept: {reason}"),
        times_ms=session.baselines,
        cost=_cost(state, session, started, options.coder == "custom"),
        unfinished=halt.kind if (halt := state.get("halt")) else "",
        steps=steps,
        source=state["task"],
    )
    result = common if folder is None or answer is None else _with_kernel(session, common, folder, answer)
    session.folder.write("result.json", result)
    write_report(session.folder, result, session.operator)
    return result


def _cost(state: State, session: Session, started: float, foreign: bool) -> Cost:
    """What the run took. The books know of attempts that no step counts: lost ones, and those of killed processes. A
    `foreign` coder says its tokens alone: what it costs is not known."""
    uses = by_role(session.ledger.uses())
    return Cost(
        usd=None if foreign else total_usd(uses),
        tokens=sum(use.tokens for use in uses),
        seconds=round(state.get("seconds", 0.0) + time.monotonic() - started, 3),
        models=uses,
    )


def _with_kernel(session: Session, result: Result, folder: Path, answer: RunResult) -> Result:
    kernel = session.folder.path("kernel.py")
    write_atomically(kernel, (folder / "kernel.py").read_text(encoding="utf-8"))
    changes: dict[str, object] = {
        "verdict": "correct",
        "kernel": str(kernel),
        "speedup": answer.speedup,
        "interval": answer.interval,
        "faster": answer.faster,
        "times_ms": answer.times_ms,
        "checks": answer.checks,
        "profile": session.folder.read(f"{folder.relative_to(session.folder.root)}/profile.json", ProfileResult),
    }
    return result.model_copy(update=changes)


def _steps(session: Session) -> list[StepRecord]:
    root = session.folder.root
    found = (session.folder.read(str(path.relative_to(root)), StepRecord) for path in session.folder.steps())
    return [step for step in found if step is not None]


def _confirmed(
    session: Session, steps: list[StepRecord], options: RunOptions, task: Task
) -> tuple[Path | None, RunResult | None, str]:
    """The best candidate that is again correct and not slower than the original; else why there is none."""
    correct = [candidate for step in steps for candidate in step.candidates if candidate.verdict == "correct"]
    correct.sort(key=lambda candidate: candidate.speedup.best or 0.0, reverse=True)
    deep = options.deep or options.backend == "cuda"
    reasons = []
    for candidate in correct[:REMEASURED]:
        folder = session.folder.path(candidate.folder)
        if options.evaluator == "external":
            await_final(session, task, options, len(steps), folder)
        answer = _judged_again(session, candidate)
        if answer.verdict != "correct":
            reasons.append(f"{candidate.strategy} was {answer.verdict} when measured again: {answer.reason}")
            continue
        original = answer.speedup.eager if answer.speedup.eager is not None else answer.speedup.best
        if original is not None and original < 1.0:
            reasons.append(f"{candidate.strategy} is slower than the original ({original:.3f}x), which is kept")
            continue
        if deep:
            answer = _checked_deeply(session, candidate, answer)
            if answer.verdict != "correct":
                reasons.append(f"{candidate.strategy} is {answer.verdict} in the deep checks: {answer.reason}")
                continue
        return folder, answer, ""
    if not correct and not any(step.verdict == "at-floor" for step in steps):
        reasons.append("no candidate was correct")
    return None, None, "; ".join(reasons)


def _judged_again(session: Session, candidate: CandidateSummary) -> RunResult:
    """A fresh judgement of this candidate, kept on disk so that a resumed finish does not repeat it."""
    record = f"{candidate.folder}/final.json"
    stored = session.folder.read(record, RunResult)
    if stored is not None:
        return stored
    kernel = str(session.folder.path(candidate.folder) / "kernel.py")
    call_tool(session, "compile", kernel, CompileResult)
    answer = call_tool(session, "run", kernel, RunResult)
    session.folder.write(record, answer)
    return answer


def _checked_deeply(session: Session, candidate: CandidateSummary, answer: RunResult) -> RunResult:
    """Sanitizers, other shapes and counters, where the evaluator has them; kept on disk as well."""
    record = f"{candidate.folder}/deep.json"
    stored = session.folder.read(record, RunResult)
    if stored is not None or not isinstance(session.bench, DeepBench):
        return stored or answer
    compiled = call_tool(session, "compile", str(session.folder.path(candidate.folder) / "kernel.py"), CompileResult)
    checked = session.bench.deep(compiled, answer)
    session.folder.write(record, checked)
    return checked
