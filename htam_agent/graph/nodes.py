"""The nodes. Each does one thing and returns the change of state; failures of candidates are values in it.

A node may run again after a crash (at-least-once), so whatever it leaves outside the state is written under a name
that depends only on (step, index, attempt): a second run finds it or writes the same thing again.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

from langchain_core.runnables.config import ContextThreadPoolExecutor
from langgraph.config import get_config
from langgraph.runtime import Runtime

from htam_agent.errors import BudgetSpent, ModelError
from htam_agent.graph.ablation import shows_strategies
from htam_agent.graph.asking import Place, asking, count_foreign, halted_by
from htam_agent.graph.context import Context, Session, context_of
from htam_agent.graph.directing import Choice, approved, choose_direction, record_of
from htam_agent.graph.events import emit
from htam_agent.graph.external import await_facts, await_verdicts
from htam_agent.graph.learning import learn_step
from htam_agent.graph.measure import measured
from htam_agent.graph.permission import ask_permission
from htam_agent.graph.requests import code_request, repair_request, selection_state, stored_code
from htam_agent.graph.state import AT_FLOOR, Candidate, Draft, Halt, State
from htam_agent.graph.toolbox import compile_candidate, profile_candidate, run_candidate
from htam_agent.runs.folder import write_atomically
from htam_agent.runs.records import StepRecord
from htam_agent.task import Task
from htam_agent.verdict import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from htam_agent.coding.base import Code, CodeRequest


def _session(state: State, runtime: Runtime[Context]) -> Session:
    return context_of(runtime).session(state["task"], state["run"])


def _as_task(given: Task | str) -> Task:
    """The task that a caller gave, perhaps as text."""
    return Task.parse(given) if isinstance(given, str) else given


def _place() -> str:
    """Where this node runs: the thread and the path of nested tasks, the same when it runs again."""
    try:
        configurable = get_config().get("configurable", {})
    except RuntimeError:  # called outside of a graph
        return ""
    thread, path = configurable.get("thread_id", ""), configurable.get("checkpoint_ns", "")
    return f"{thread}/{path}" if path else ""


@measured
def prepare(state: State, runtime: Runtime[Context]) -> State:
    """Load and trace the task in a worker, and measure the baselines and the floor."""
    context = context_of(runtime)
    folder = context.take_up_run(_as_task(state["task"]), _place())
    run, task = str(folder.root), folder.manifest().task
    if context.options.evaluator == "external":
        await_facts(folder, task, context.options)
    emit(runtime, "prepare", f"loading and tracing {task.name}")
    session = context_of(runtime).session(task, run)
    # From here on the processes of the run live, and the state does not know the run before this node has ended.
    with context_of(runtime).ended_on_failure(run):
        return {**_prepared(runtime, session, run), "task": task}


def _prepared(runtime: Runtime[Context], session: Session, run: str) -> State:
    """The state before the first step."""
    best, floor = session.baselines.best, session.baselines.floor
    what = f"{session.operator.operator_class} on {session.bench.device.name}"
    emit(runtime, "prepared", what, best=best, floor=floor)
    return {
        "run": run,
        "draft": Draft(step=0),
        "candidates": {},
        "best": None,
        "past": [],
        "tried": [],
        "idle_steps": 0,
        "tokens": 0,
        "stop": _original_at_floor(session),
        "halt": None,
    }


def _original_at_floor(session: Session) -> str:
    """Why there is nothing to do, when the original itself runs at the floor."""
    times = session.baselines
    original = times.eager_tf32 or times.eager
    if original is None or times.floor is None or times.floor < AT_FLOOR * original:
        return ""
    record = StepRecord(
        step=1,
        direction="",
        why="",
        strategy="",
        verdict="at-floor",
        reason=f"the original takes {original:.4g} ms, the floor is {times.floor:.4g} ms",
    )
    session.folder.write("steps/0001.json", record)
    return f"at the floor: {record.reason}; the original is kept"


@measured
def select_direction(state: State, runtime: Runtime[Context]) -> State:
    """Open the next step and choose its direction: by transition-aware score, or by a model among the best scored, and
    with the user's yes where that is wanted."""
    context, session = context_of(runtime), _session(state, runtime)
    before = state["draft"]
    started = before.started if before.opening else state["seconds"]
    draft = Draft(step=before.step + 1, opening=before.opening, started=started)
    try:
        choice = session.folder.read(record_of(draft), Choice) or _choice(state, runtime, session, draft)
    except (BudgetSpent, ModelError) as error:
        halt = halted_by(error, state)
        return {"stop": halt.reason, "halt": halt}
    if choice is None:
        return {"stop": "no direction has an applicable strategy left"}
    if "direction" in context.options.approve:
        choice = approved(session.folder, state["task"].id, draft, choice)
        if choice is None:
            return {"stop": "every direction was declined"}
    chosen = choice.offered[0]
    emit(runtime, "direction", chosen.direction, step=draft.step, why=chosen.why)
    changes = {"direction": chosen.direction, "why": chosen.why, "directed": choice.directed}
    return {"draft": draft.model_copy(update=changes)}


def _choice(state: State, runtime: Runtime[Context], session: Session, draft: Draft) -> Choice | None:
    """A new choice among what can be taken, on disk; None where nothing can."""
    from htam_agent.memory.attention import score_directions

    context = context_of(runtime)
    opened: State = {**state, "draft": draft}
    scored = score_directions(selection_state(opened, context, session), context.memory)
    if not scored:
        return None
    with asking(state, runtime, session, Place.of_step(draft.step, draft.opening)):
        return choose_direction(state, context, session, draft, scored)


@measured
def retrieve_strategies(state: State, runtime: Runtime[Context]) -> State:
    """Fetch the direction's local strategies, filtered and ranked, and plan the step's candidates."""
    from htam_agent.memory.retrieval import retrieve_strategies as retrieve

    context, draft = context_of(runtime), state["draft"]
    asked, repairs = context.options.candidates, context.options.repairs
    # Of a template coder every attempt of every candidate takes a strategy of its own; a model is shown a few.
    wanted = max(5, asked * (1 + repairs) if context.options.coder == "template" else asked + repairs)
    session = _session(state, runtime)
    found = retrieve(selection_state(state, context, session), draft.direction, context.memory, limit=wanted)
    names = tuple(scored.strategy.id for scored in found) if shows_strategies(context.options) else ()
    emit(runtime, "strategies", ", ".join(names), step=draft.step)
    # A template candidate is one strategy, so more candidates than strategies would write the same kernel twice.
    count = min(asked, len(names)) if context.options.coder == "template" else asked
    planned = [Candidate(step=draft.step, index=index, opening=draft.opening, turn=index) for index in range(count)]
    return {
        "draft": draft.model_copy(update={"strategies": names}),
        "candidates": {candidate.key: candidate for candidate in planned},
    }


@measured
def generate(state: State, runtime: Runtime[Context]) -> State:
    """Have the coder write one candidate, or mend it after a repair edge. The graph sends each candidate of a step here
    on its own, and they are written side by side (routes.write_each)."""
    session = _session(state, runtime)

    def write(candidate: Candidate) -> Candidate:
        started = time.monotonic()
        request = code_request(state, context_of(runtime), session, candidate)
        stored = stored_code(session, candidate.step, candidate.index, candidate.attempt)
        try:
            code = stored or _ask(state, runtime, session, request, candidate)
        except (BudgetSpent, ModelError) as error:
            return _not_written(candidate, halted_by(error, state))
        took = stored.seconds if stored else time.monotonic() - started
        emit(
            runtime,
            "code",
            code.strategy or code.refusal,
            step=candidate.step,
            candidate=candidate.index,
            attempt=candidate.attempt,
        )
        return _written(candidate, code, took if code.prompt_tokens else 0.0)

    return _each(state, "planned", write)


def _not_written(candidate: Candidate, halt: Halt) -> Candidate:
    """The candidate as it was before an attempt that could not be asked for."""
    before = max(0, candidate.attempt - 1)
    return candidate.model_copy(update={"status": "failed", "attempt": before, "halt": halt})


def _written(candidate: Candidate, code: Code, seconds: float) -> Candidate:
    """The candidate after the coder's answer, which took `seconds` of a model's time."""
    changes: dict[str, object] = {
        "tokens": candidate.tokens + code.prompt_tokens + code.completion_tokens,
        "tool_seconds": candidate.tool_seconds + seconds,
    }
    if code.refusal:
        failure = candidate.failure or Failure(kind="unsupported", stage="load", reason=code.refusal)
        changes |= {"status": "failed", "failure": failure, "hopeless": code.hopeless}
        return candidate.model_copy(update=changes)
    tried = (*candidate.tried, code.strategy) if code.strategy else candidate.tried
    return candidate.model_copy(update={**changes, "status": "written", "strategy": code.strategy, "tried": tried})


def _ask(state: State, runtime: Runtime[Context], session: Session, request: CodeRequest, candidate: Candidate) -> Code:
    """Ask the coder and store its answer before anything else happens to it. A refusal that cost nothing is not stored:
    the step is opened again with other strategies under the same number."""
    coder = context_of(runtime).coder
    with asking(state, runtime, session, Place.of_candidate(candidate)) as scope:
        session.ledger.check()
        if candidate.attempt == 0:
            code = coder.generate(request)
        else:
            code = coder.repair(repair_request(request, session, candidate))
        count_foreign(code, scope)
    if not code.source and not code.prompt_tokens:
        return code
    folder = session.folder.candidate(candidate.step, candidate.index, candidate.attempt)
    if code.source:
        write_atomically(folder / "kernel.py", code.source)
    session.folder.write(str(folder.relative_to(session.folder.root) / "code.json"), code)
    return code


@measured
def compile(state: State, runtime: Runtime[Context]) -> State:
    """Build every written candidate, side by side."""
    context, session = context_of(runtime), _session(state, runtime)
    written = _of_status(state, "written")
    if "code" in context.options.approve:
        written = ask_permission(session, state["task"], context.options, written)
    allowed = [candidate for candidate in written if candidate.status == "written"]
    # The pool hands the call's own context on, so that tools report to whoever traces the graph.
    with ContextThreadPoolExecutor(max_workers=max(1, min(len(allowed), len(os.sched_getaffinity(0))))) as pool:
        built = list(pool.map(lambda candidate: compile_candidate(session, runtime, candidate), allowed))
    return {"candidates": {candidate.key: candidate for candidate in [*written, *built]}}


@measured
def run(state: State, runtime: Runtime[Context]) -> State:
    """Judge and time every built candidate, one after the other, each in a process of its own; or wait for the verdicts
    of another machine."""
    context, session = context_of(runtime), _session(state, runtime)
    if context.options.evaluator == "external":
        await_verdicts(session, state["task"], context.options, _of_status(state, "built"))
    return _each(state, "built", lambda candidate: run_candidate(session, runtime, candidate))


@measured
def profile(state: State, runtime: Runtime[Context]) -> State:
    """Place every correct candidate against the device's ceilings."""
    session = _session(state, runtime)
    return _each(state, "correct", lambda candidate: profile_candidate(session, runtime, candidate))


@measured
def repair(state: State, runtime: Runtime[Context]) -> State:
    """Give each broken candidate another attempt while it has one left; then it is a recorded failure."""
    turns = itertools.count()

    def decide(candidate: Candidate) -> Candidate:
        if candidate.attempt >= context_of(runtime).options.repairs:
            return candidate.model_copy(update={"status": "failed"})
        reason = candidate.failure.reason if candidate.failure else ""
        emit(runtime, "repair", reason, step=candidate.step, candidate=candidate.index, attempt=candidate.attempt + 1)
        changes = {"status": "planned", "attempt": candidate.attempt + 1, "turn": next(turns)}
        return candidate.model_copy(update={**changes, "taken": _taken(state, candidate)})

    return _each(state, "broken", decide)


@measured
def learn(state: State, runtime: Runtime[Context]) -> State:
    """Record the step and its experiences, move the best kernel, and decide whether to go on."""
    return learn_step(state, runtime, _session(state, runtime))


@measured
def finish(state: State, runtime: Runtime[Context]) -> State:
    """Measure the winner again in a fresh process, export it, and write the report."""
    from htam_agent.graph.finishing import finish_run

    result = finish_run(state, runtime, _session(state, runtime))
    context_of(runtime).close_session(state["run"])
    return {"result": result}


def _each(state: State, status: str, change: Callable[[Candidate], Candidate]) -> State:
    """Apply `change` to the current step's candidates of this status."""
    return {"candidates": {candidate.key: change(candidate) for candidate in _of_status(state, status)}}


def _of_status(state: State, status: str) -> list[Candidate]:
    return [candidate for candidate in state["candidates"].values() if candidate.status == status]


def _taken(state: State, candidate: Candidate) -> tuple[str, ...]:
    """What the step's other candidates have tried."""
    others = (other.tried for other in state["candidates"].values() if other.key != candidate.key)
    return tuple(dict.fromkeys(name for tried in others for name in tried if name not in candidate.tried))
