"""From the graph's state to what memory and coders are asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from htam_agent.coding.base import BestSoFar, Code, CodeRequest, RepairRequest
from htam_agent.graph.ablation import shows_strategies, told_direction
from htam_agent.memory.model import ScoredStrategy, SelectionState
from htam_agent.memory.modes import draws_strategies
from htam_agent.memory.pitfalls import learned_pitfalls
from htam_agent.verdict import ProfileResult, RunResult

if TYPE_CHECKING:
    from htam_agent.coding.plan import Plan
    from htam_agent.graph.context import Context, Session
    from htam_agent.graph.state import Candidate, State


def selection_state(state: State, context: Context, session: Session) -> SelectionState:
    """What selection attends to before the step under way."""
    best = state.get("best")
    plan = _best_plan(state, session) or context.coder.initial_plan(session.operator, context.options.backend)
    draft = state["draft"]
    return SelectionState(
        task=state["task"].id,
        run=session.folder.key,
        backend=context.options.backend,
        features=session.features,
        operators=session.operator.operators,
        compute_capability=_compute_capability(session.bench.device.architecture),
        bottleneck=best.bottleneck if best else "unknown",
        fraction_of_floor=best.fraction_of_floor if best else None,
        prefix=tuple(past.direction for past in state.get("past", [])),
        prefix_outcomes=tuple(past.outcome for past in state.get("past", [])),
        tried=tuple(state.get("tried", [])),
        plan_mapping=plan.mapping if plan else None,
        plan_staging=plan.staging if plan else None,
        plan_strategies=plan.strategies if plan else (),
        device=session.bench.device,
        steps_left=context.options.steps - draft.step + 1,
        seed=session.seed + draft.step,
        mode=context.options.memory_mode,
    )


def code_request(state: State, context: Context, session: Session, candidate: Candidate) -> CodeRequest:
    """What the coder may look at for this candidate."""
    from htam_agent.memory.retrieval import retrieve_strategies

    draft = state["draft"]
    ranked = retrieve_strategies(selection_state(state, context, session), draft.direction, context.memory, limit=64)
    known = {scored.strategy.id: scored for scored in ranked}
    return CodeRequest(
        task_source=state["task"].text,
        operator=session.operator,
        backend=context.options.backend,
        device=session.bench.device,
        ceilings=session.bench.ceilings,
        precision=context.options.precision,
        policy=session.bench.policy,
        direction=told_direction(context, draft.direction),
        direction_why=draft.why if shows_strategies(context.options) else "",
        strategies=[with_pitfalls(known[name], context) for name in draft.strategies if name in known],
        baselines=session.baselines,
        best=_best_so_far(state, session),
        history=[past.line for past in state.get("past", [])],
        step=draft.step,
        index=candidate.turn,
    )


def with_pitfalls(scored: ScoredStrategy, context: Context) -> ScoredStrategy:
    """The strategy with what recurs in its failures beside its own pitfalls, unless the memory mode draws strategies
    whatever was measured."""
    if draws_strategies(context.options.memory_mode):
        return scored
    learned = learned_pitfalls(context.memory.evidence.records, scored.strategy.id)
    if not learned:
        return scored
    pitfalls = [*scored.strategy.pitfalls, *learned]
    return scored.model_copy(update={"strategy": scored.strategy.model_copy(update={"pitfalls": pitfalls})})


def repair_request(request: CodeRequest, session: Session, candidate: Candidate) -> RepairRequest:
    """The failed attempt before this one, with its evidence. What another candidate of the step tried before is not
    written again."""
    previous = stored_code(session, candidate.step, candidate.index, candidate.attempt - 1)
    assert previous is not None, "repair follows a stored attempt"
    assert candidate.failure is not None, "repair follows a failure"
    return RepairRequest(
        request=request,
        source=previous.source,
        plan=previous.plan,
        failure=candidate.failure,
        tried=[*candidate.taken, *candidate.tried] if candidate.tried else [],
        attempt=candidate.attempt,
    )


def stored_code(session: Session, step: int, index: int, attempt: int) -> Code | None:
    """The coder's answer of this attempt, if it was given before (by this process or one that was killed)."""
    name = session.folder.candidate(step, index, attempt).relative_to(session.folder.root) / "code.json"
    return session.folder.read(str(name), Code)


def _best_plan(state: State, session: Session) -> Plan | None:
    best = state.get("best")
    code = stored_code(session, best.step, best.index, best.attempt) if best else None
    return code.plan if code else None


def _best_so_far(state: State, session: Session) -> BestSoFar | None:
    best = state.get("best")
    if best is None:
        return None
    code = stored_code(session, best.step, best.index, best.attempt)
    if code is None:
        return None
    folder = session.folder.candidate(best.step, best.index, best.attempt).relative_to(session.folder.root)
    judged = session.folder.read(f"{folder}/run.json", RunResult)
    return BestSoFar(
        source=code.source,
        plan=code.plan,
        times_ms=session.baselines.model_copy(update={"candidate": best.time_ms}),
        profile=session.folder.read(f"{folder}/profile.json", ProfileResult),
        speedup=best.speedup.best,
        interval=judged.interval if judged is not None else None,
    )


def _compute_capability(architecture: str) -> int | None:
    """90 for "sm_90"."""
    found = re.fullmatch(r"sm_(\d+)a?", architecture)
    return int(found[1]) if found else None
