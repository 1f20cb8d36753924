"""What a step teaches the memory: one experience for each attempt that was judged, its failure included."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from htam_agent.coding.causes import cause_of_build, cause_of_run
from htam_agent.graph.ablation import direction_of, learns
from htam_agent.graph.requests import stored_code
from htam_agent.memory.model import Experience
from htam_agent.verdict import CompileResult, RunResult

if TYPE_CHECKING:
    from htam_agent.coding.base import Code
    from htam_agent.failures import FailureCause
    from htam_agent.graph.context import Context, Session
    from htam_agent.graph.state import Best, Candidate, State
    from htam_agent.words import Verdict


class Judged(NamedTuple):
    """One attempt as its stored records tell it. `speedup` is over the best baseline, null unless it was timed."""

    number: int
    code: Code
    verdict: Verdict
    reason: str
    speedup: float | None
    seconds: float
    """Of building and judging, and of asking a model."""
    cause: FailureCause = "unknown"


def remember(state: State, context: Context, session: Session, candidates: list[Candidate]) -> None:
    """Store the experiences of a finished step, under ids that a replayed node writes again.

    Only facts about kernels enter the memory: an attempt that the coder refused, or that follows no strategy, is none.
    In the memory mode no-update nothing enters, and what was written without a direction teaches nothing of any.
    """
    if not learns(context.options):
        return
    found = [
        _experience(state, context, session, candidate, attempt)
        for candidate in candidates
        for attempt in judged_attempts(session, candidate)
        if direction_of(context, state["draft"].direction, attempt.code.strategy)
    ]
    if found:
        context.memory.add_experiences(found)


def judged_attempts(session: Session, candidate: Candidate) -> list[Judged]:
    """The candidate's attempts that follow a strategy and were built or judged, in order; none under which harness or
    machine failed."""
    numbers = range(candidate.attempt + 1)
    found = (_judged(session, candidate.step, candidate.index, number) for number in numbers)
    return [attempt for attempt in found if attempt is not None]


def _judged(session: Session, step: int, index: int, number: int) -> Judged | None:
    code = stored_code(session, step, index, number)
    if code is None or not code.source or not code.strategy:
        return None
    folder = session.folder.candidate(step, index, number).relative_to(session.folder.root)
    built = session.folder.read(f"{folder}/compile.json", CompileResult)
    ran = session.folder.read(f"{folder}/run.json", RunResult)
    if built is None:
        return None
    seconds = built.seconds + (code.seconds if code.prompt_tokens else 0.0)
    if not built.ok:
        return Judged(number, code, "failed", built.reason or "does not build", None, seconds, cause_of_build(built))
    # Another machine's answer may say that it failed itself, which is no fact about a strategy.
    if ran is None or ran.infrastructure:
        return None
    cause = "unknown" if ran.verdict == "correct" else cause_of_run(ran)
    return Judged(number, code, ran.verdict, ran.reason, ran.speedup.best, seconds + ran.seconds, cause)


def times_around(session: Session, before: Best | None, after: float | None) -> tuple[float, float | None]:
    """Milliseconds before and after a step, both through the ratio to the same baseline; `after` is the new ratio."""
    reference = session.baselines.best or session.baselines.eager or 0.0
    time_before = reference / before.speedup.best if before and before.speedup.best else reference
    return time_before, reference / after if after else None


def _experience(state: State, context: Context, session: Session, candidate: Candidate, attempt: Judged) -> Experience:
    before, run = state.get("best"), session.folder.key
    time_before, time_after = times_around(session, before, attempt.speedup)
    return Experience(
        id=f"{run}:{candidate.step}:{candidate.index}:{attempt.number}",
        run=run,
        step=candidate.step,
        candidate=candidate.index,
        task=state["task"].id,
        features=session.features,
        precision=context.options.precision,
        bottleneck=before.bottleneck if before else "unknown",
        fraction_of_floor=before.fraction_of_floor if before else None,
        prefix=tuple(past.direction for past in state.get("past", [])),
        prefix_outcomes=tuple(past.outcome for past in state.get("past", [])),
        steps_left=context.options.steps - candidate.step + 1,
        direction=direction_of(context, state["draft"].direction, attempt.code.strategy),
        strategy=attempt.code.strategy,
        verdict=attempt.verdict,
        time_before_ms=time_before,
        time_after_ms=time_after,
        floor_ms=session.baselines.floor,
        seconds=attempt.seconds,
        tokens=attempt.code.prompt_tokens + attempt.code.completion_tokens,
        usd=None if attempt.code.prompt_tokens else 0.0,
        reason=attempt.reason[:400],
        cause=attempt.cause,
        device=session.bench.device,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
