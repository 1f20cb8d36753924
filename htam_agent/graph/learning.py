"""The learn node's work: one measured step becomes a record, experiences, and perhaps a new best kernel."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from htam_agent.coding.usage import by_role
from htam_agent.graph.ablation import direction_of, shows_direction
from htam_agent.graph.context import context_of
from htam_agent.graph.directing import reasons_of
from htam_agent.graph.events import emit
from htam_agent.graph.experiences import remember, times_around
from htam_agent.graph.state import AT_FLOOR, PREFIX_LENGTH, Best, Candidate, Draft, Halt, Past, State
from htam_agent.memory.attention import share_closed
from htam_agent.runs.records import CandidateSummary, RunOptions, StepRecord
from htam_agent.verdict import ProfileResult, RunResult

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

    from htam_agent.graph.context import Context, Session

WIDE = 1.25
"""High over low end of an interval from which on a step's line says both."""
NOTICEABLE = 1.005
"""A new best must be 0.5 % faster: less is the spread of the measurement."""


def learn_step(state: State, runtime: Runtime[Context], session: Session) -> State:
    """Close the step under way. Writes steps/NNNN.json and the experiences, both under idempotent names."""
    opened = time.monotonic()
    draft, before = state["draft"], state.get("best")
    opening = (draft.step, draft.opening)
    candidates = [one for one in state["candidates"].values() if (one.step, one.opening) == opening]
    halt = next((candidate.halt for candidate in candidates if candidate.halt), None)
    # A candidate that no coder could be asked for is none; one whose repair could not be asked for stays as it was.
    candidates = [one for one in candidates if one.halt is None or one.tried or one.failure]
    if halt is not None and not candidates:
        return {**_undone(state, draft), "stop": halt.reason, "halt": halt}
    if all(_refused_at_once(candidate) for candidate in candidates):
        return _open_again(state, runtime, draft, candidates)
    remember(state, context_of(runtime), session, candidates)
    winner = _winner(candidates)
    improved = winner is not None and _better(winner, before)
    best = _best(session, winner) if winner is not None and improved else before
    total = state["seconds"] + time.monotonic() - opened
    seconds = total - draft.started
    record = _record(context_of(runtime), session, draft, candidates, winner, improved, seconds)
    session.folder.write(f"steps/{draft.step:04d}.json", record)
    emit(runtime, "learned", f"{record.strategy}: {record.verdict}", step=draft.step, speedup=record.speedup.best)
    used = [name for candidate in candidates for name in candidate.tried]
    after: State = {
        "draft": draft.model_copy(update={"opening": 0}),
        "best": best,
        "past": [*state.get("past", []), _past(session, record, before, winner)][-PREFIX_LENGTH:],
        # Against a new best kernel every strategy deserves another look, but those that it was made with.
        "tried": [*used, *_made_with(session, context_of(runtime).options, draft.step)]
        if improved
        else sorted({*state.get("tried", []), *used}),
        "idle_steps": 0 if improved else state.get("idle_steps", 0) + 1,
        "seconds": total,
        "tokens": state.get("tokens", 0) + record.tokens,
    }
    late = _time_is_up(total, context_of(runtime).options)
    after["stop"] = halt.reason if halt else _stop(after, context_of(runtime).options, draft, candidates)
    after["halt"] = halt or (Halt(kind="time", reason=late) if late and after["stop"] == late else None)
    return after


def _refused_at_once(candidate: Candidate) -> bool:
    """The coder found, at no cost, that none of the strategies fits this kernel."""
    return candidate.failure is not None and not (candidate.tried or candidate.hopeless or candidate.tokens)


def _open_again(state: State, runtime: Runtime[Context], draft: Draft, candidates: list[Candidate]) -> State:
    """Nothing was built or measured, so no step was taken: the strategies are masked and the step is opened anew."""
    reasons = [candidate.failure.reason for candidate in candidates if candidate.failure]
    emit(runtime, "refused", reasons[0] if reasons else "", step=draft.step)
    late = _time_is_up(state["seconds"], context_of(runtime).options)
    return {
        **_undone(state, draft),
        "tried": sorted({*state.get("tried", []), *draft.strategies}),
        "stop": late if draft.strategies else "no strategy could be retrieved",
        "halt": Halt(kind="time", reason=late) if late and draft.strategies else None,
    }


def _undone(state: State, draft: Draft) -> State:
    """The state in which the same step is opened once more."""
    return {
        "draft": draft.model_copy(update={"step": draft.step - 1, "opening": draft.opening + 1}),
        "tokens": state.get("tokens", 0) + (draft.directed.tokens if draft.directed else 0),
    }


def _winner(candidates: list[Candidate]) -> Candidate | None:
    correct = [candidate for candidate in candidates if candidate.status == "profiled"]
    return max(correct, key=lambda candidate: candidate.speedup.best or 0.0, default=None)


def _better(winner: Candidate, before: Best | None) -> bool:
    """By the ratio to the baseline measured in the same rounds: it cancels what drifts between measurements."""
    if before is None:
        return True
    return (winner.speedup.best or 0.0) > NOTICEABLE * (before.speedup.best or 0.0)


def _best(session: Session, winner: Candidate) -> Best:
    folder = session.folder.candidate(winner.step, winner.index, winner.attempt).relative_to(session.folder.root)
    profile = session.folder.read(f"{folder}/profile.json", ProfileResult)
    return Best(
        step=winner.step,
        index=winner.index,
        attempt=winner.attempt,
        time_ms=winner.time_ms or 0.0,
        speedup=winner.speedup,
        bottleneck=profile.bottleneck if profile else "unknown",
        fraction_of_floor=profile.fraction_of_floor if profile else None,
    )


def _record(
    context: Context,
    session: Session,
    draft: Draft,
    candidates: list[Candidate],
    winner: Candidate | None,
    improved: bool,
    seconds: float,
) -> StepRecord:
    shown = winner or candidates[0]
    reasons = reasons_of(session.folder, draft) if shows_direction(context.options) else None
    return StepRecord(
        step=draft.step,
        direction=direction_of(context, draft.direction, shown.strategy),
        why=draft.why if shows_direction(context.options) else "",
        strategy=shown.strategy,
        verdict=shown.verdict or "failed",
        reason=shown.failure.reason if shown.failure else "",
        speedup=shown.speedup,
        candidates=[_summary(session, candidate) for candidate in candidates],
        improved=improved,
        seconds=seconds,
        tokens=sum(candidate.tokens for candidate in candidates) + (draft.directed.tokens if draft.directed else 0),
        directed=draft.directed,
        terms=reasons.terms if reasons else (),
        experiences=reasons.experiences if reasons else (),
        models=by_role(session.ledger.uses(draft.step)),
        agent_seconds=max(0.0, seconds - _waited(draft, candidates)),
    )


def _waited(draft: Draft, candidates: list[Candidate]) -> float:
    """Seconds that a step spent in tools and models. Of answers that were waited for side by side each counts."""
    return sum(candidate.tool_seconds for candidate in candidates) + (draft.directed.seconds if draft.directed else 0.0)


def _summary(session: Session, candidate: Candidate) -> CandidateSummary:
    folder = session.folder.candidate(candidate.step, candidate.index, candidate.attempt)
    return CandidateSummary(
        index=candidate.index,
        attempts=candidate.attempt + 1,
        strategy=candidate.strategy,
        verdict=candidate.verdict or "failed",
        stage=candidate.failure.stage if candidate.failure else "",
        reason=candidate.failure.reason if candidate.failure else "",
        cause=candidate.failure.cause if candidate.failure else "unknown",
        speedup=candidate.speedup,
        time_ms=candidate.time_ms,
        folder=str(folder.relative_to(session.folder.root)),
    )


def _past(session: Session, record: StepRecord, before: Best | None, winner: Candidate | None) -> Past:
    time_before, time_after = times_around(session, before, winner.speedup.best if winner else None)
    outcome = share_closed(time_before, time_after, session.baselines.floor)
    speed = (
        f", {record.speedup.best:.2f}x over the best baseline{_spread(session, winner)}" if record.speedup.best else ""
    )
    place = f"{record.direction} / {record.strategy or 'none'}" if record.direction else record.strategy or "none"
    if winner is not None and not record.improved:
        speed += ", no gain"
    line = f"step {record.step}: {place}: {record.verdict}{speed}"
    causes = {one.cause for one in record.candidates} - {"unknown"}
    if record.reason:
        line += f" ({', '.join(sorted(causes))}{': ' if causes else ''}{record.reason[:160]})"
    return Past(direction=record.direction, strategy=record.strategy, outcome=outcome, line=line)


def _made_with(session: Session, options: RunOptions, step: int) -> list[str]:
    """Strategies of the steps before this one that led to the best kernel. A template coder's are in its plan, which
    selection reads; a model has none."""
    if options.coder != "model":
        return []
    records = (session.folder.read(f"steps/{number:04d}.json", StepRecord) for number in range(1, step))
    return [record.strategy for record in records if record is not None and record.improved and record.strategy]


def _spread(session: Session, winner: Candidate | None) -> str:
    """Between what a step's ratio was measured, where that is wide: such a figure says little."""
    if winner is None:
        return ""
    folder = session.folder.candidate(winner.step, winner.index, winner.attempt).relative_to(session.folder.root)
    judged = session.folder.read(f"{folder}/run.json", RunResult)
    interval = judged.interval if judged is not None else None
    if interval is None or interval.high < WIDE * interval.low:
        return ""
    return f" (between {interval.low:.2f} and {interval.high:.2f}: the machine was busy)"


def _stop(after: State, options: RunOptions, draft: Draft, candidates: list[Candidate]) -> str:
    """The stop rules; empty while the run goes on. A kernel near the floor that still loses to the best baseline is not
    done: the last percents decide."""
    best = after.get("best")
    refusals = [candidate.failure.reason for candidate in candidates if candidate.hopeless and candidate.failure]
    if refusals and len(refusals) == len(candidates):
        return refusals[0]
    if best and (best.fraction_of_floor or 0.0) >= AT_FLOOR and (best.speedup.best or 0.0) >= 1.0:
        return f"at the floor: the kernel reaches {best.fraction_of_floor:.0%} of it"
    if draft.step >= options.steps:
        return f"all {options.steps} steps are done"
    if late := _time_is_up(after["seconds"], options):
        return late
    if after["idle_steps"] >= options.no_progress_steps:
        return f"no progress in {after['idle_steps']} steps"
    return ""


def _time_is_up(seconds: float, options: RunOptions) -> str:
    """Why no further step begins when the run took this long; empty where it may."""
    if options.max_seconds is None or seconds < options.max_seconds:
        return ""
    return f"the time limit of {options.max_seconds:g} s is reached"
