"""The nodes. Each does one thing and returns the change of state; failures of candidates are values in it.

A node may run again after a crash (at-least-once), so whatever it leaves outside the state is written under a name
that depends only on (step, index, attempt): a second run finds it or writes the same thing again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from langgraph.runtime import Runtime

from htam_agent.graph.ablation import shows_strategies
from htam_agent.graph.context import Context, Session, context_of
from htam_agent.graph.events import emit
from htam_agent.graph.learning import learn_step
from htam_agent.graph.measure import measured
from htam_agent.graph.requests import code_request, repair_request, selection_state, stored_code
from htam_agent.graph.state import AT_FLOOR, Candidate, Draft, State
from htam_agent.graph.toolbox import compile_candidate, profile_candidate, run_candidate
from htam_agent.runs.folder import write_atomically
from htam_agent.runs.records import StepRecord
from htam_agent.task import Task
from htam_agent.verdict import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from htam_agent.coding.base import Code, CodeRequest


def _session(state: State, runtime: Runtime[Context]) -> Session:
    return context_of(runtime).session(state["task"], state["run"])


def _as_task(given: Task | str) -> Task:
    """The task that a caller gave, perhaps as text."""
    return Task.parse(given) if isinstance(given, str) else given


@measured
def prepare(state: State, runtime: Runtime[Context]) -> State:
    """Load and trace the task in a worker, and measure the baselines and the floor."""
    folder = context_of(runtime).take_up_run(_as_task(state["task"]))
    run, task = str(folder.root), folder.manifest().task
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
    """Open the next step and choose its direction by transition-aware score, with the reason in words."""
    from htam_agent.memory.attention import score_directions

    session = _session(state, runtime)
    before = state["draft"]
    started = before.started if before.opening else state["seconds"]
    draft = Draft(step=before.step + 1, opening=before.opening, started=started)
    opened: State = {**state, "draft": draft}
    scored = score_directions(selection_state(opened, context_of(runtime), session), context_of(runtime).memory)
    if not scored:
        return {"stop": "no direction has an applicable strategy left"}
    chosen = scored[0]
    emit(runtime, "direction", chosen.direction, step=draft.step, why=chosen.why)
    return {"draft": draft.model_copy(update={"direction": chosen.direction, "why": chosen.why})}


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
    planned = [Candidate(step=draft.step, index=index, opening=draft.opening) for index in range(count)]
    return {
        "draft": draft.model_copy(update={"strategies": names}),
        "candidates": {candidate.key: candidate for candidate in planned},
    }


@measured
def generate(state: State, runtime: Runtime[Context]) -> State:
    """Have the coder write each planned candidate, or mend it after a repair edge."""
    session = _session(state, runtime)
    step = dict(state["candidates"])

    def write(candidate: Candidate) -> Candidate:
        started = time.monotonic()
        request = code_request(state, context_of(runtime), session, candidate)
        stored = stored_code(session, candidate.step, candidate.index, candidate.attempt)
        code = stored or _ask(context_of(runtime), session, request, candidate, step)
        took = stored.seconds if stored else time.monotonic() - started
        emit(runtime, "code", code.strategy or code.refusal, step=candidate.step, attempt=candidate.attempt)
        step[candidate.key] = _written(candidate, code, took if code.prompt_tokens else 0.0)
        return step[candidate.key]

    return _each(state, "planned", write)


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


def _ask(
    context: Context, session: Session, request: CodeRequest, candidate: Candidate, step: Mapping[str, Candidate]
) -> Code:
    """Ask the coder and store its answer before anything else happens to it. A refusal that cost nothing is not stored:
    the step is opened again with other strategies under the same number."""
    if candidate.attempt == 0:
        code = context.coder.generate(request)
    else:
        code = context.coder.repair(repair_request(request, session, candidate, step.values()))
    if not code.source and not code.prompt_tokens:
        return code
    folder = session.folder.candidate(candidate.step, candidate.index, candidate.attempt)
    if code.source:
        write_atomically(folder / "kernel.py", code.source)
    session.folder.write(str(folder.relative_to(session.folder.root) / "code.json"), code)
    return code


@measured
def compile(state: State, runtime: Runtime[Context]) -> State:
    """Build every written candidate."""
    session = _session(state, runtime)
    return _each(state, "written", lambda candidate: compile_candidate(session, runtime, candidate))


@measured
def run(state: State, runtime: Runtime[Context]) -> State:
    """Judge and time every built candidate, each in a process of its own."""
    session = _session(state, runtime)
    return _each(state, "built", lambda candidate: run_candidate(session, runtime, candidate))


@measured
def profile(state: State, runtime: Runtime[Context]) -> State:
    """Place every correct candidate against the device's ceilings."""
    session = _session(state, runtime)
    return _each(state, "correct", lambda candidate: profile_candidate(session, runtime, candidate))


@measured
def repair(state: State, runtime: Runtime[Context]) -> State:
    """Give each broken candidate another attempt while it has one left; then it is a recorded failure."""

    def decide(candidate: Candidate) -> Candidate:
        if candidate.attempt >= context_of(runtime).options.repairs:
            return candidate.model_copy(update={"status": "failed"})
        reason = candidate.failure.reason if candidate.failure else ""
        emit(runtime, "repair", reason, step=candidate.step, attempt=candidate.attempt + 1)
        return candidate.model_copy(update={"status": "planned", "attempt": candidate.attempt + 1})

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
    chosen = [candidate for candidate in state["candidates"].values() if candidate.status == status]
    return {"candidates": {candidate.key: change(candidate) for candidate in chosen}}
