"""What the memory would choose first for a task, and why: the first step's state, scored, with nothing built or run."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from htam_agent.memory.attention import masked_directions, score_directions
from htam_agent.memory.model import ScoredDirection, SelectionState
from htam_agent.memory.modes import MemoryMode
from htam_agent.memory.preconditions import applicable
from htam_agent.memory.retrieval import retrieve_strategies
from htam_agent.operator import OperatorFeatures
from htam_agent.words import Backend, Record

if TYPE_CHECKING:
    from htam_agent.coding.plan import Plan
    from htam_agent.memory.index import Memory
    from htam_agent.memory.store import MemoryStore
    from htam_agent.operator import OperatorProfile
    from htam_agent.settings import Settings
    from htam_agent.task import Task
    from htam_agent.verdict import DeviceFacts

SHOWN_STRATEGIES = 5


class WhyStrategy(Record):
    """A strategy of the chosen direction that may be used."""

    id: str
    title: str
    score: float
    why: str


class MemoryWhy(Record):
    """What `htam memory why TASK --json` prints."""

    schema_: Literal["htam.memory/1"] = Field("htam.memory/1", alias="schema", serialization_alias="schema")
    task: str
    backend: Backend
    device: str
    operators: list[str]
    features: OperatorFeatures
    mode: MemoryMode
    seed: int
    """Of the exploration; a run without a seed of its own draws another one."""
    chosen: str | None
    """The direction of the first step; null when none has a strategy that applies."""
    strategies: list[WhyStrategy]
    """Those of the chosen direction, best first."""
    directions: list[ScoredDirection]
    """All that can be taken, best first, with the terms of their scores and the experiences that weighed most."""
    masked: dict[str, str]
    """Direction -> what stands against it."""
    refused: dict[str, str]
    """Strategy of the chosen direction, for this backend -> what stands against it."""


def explain_task(task: Task, store: MemoryStore, settings: Settings) -> MemoryWhy:
    """Loads and traces the task in a worker, as a run does, and asks the memory.

    Raises TaskError, BackendUnavailable and WorkerError.
    """
    from htam_agent.coding.template import TemplateCoder
    from htam_agent.services import open_bench, run_options

    options = run_options(settings)
    with (
        tempfile.TemporaryDirectory(prefix="htam-why-") as folder,
        open_bench(task, options, Path(folder)) as bench,
    ):
        operator, device = bench.operator, bench.device
    plan = None
    if settings.coder == "template":
        plan = TemplateCoder(store.strategies).initial_plan(operator, options.backend)
    state = first_state(task.id, operator, device, plan, options.steps, settings.seed or 0, options.memory_mode)
    return explain(state, store)


def first_state(
    task: str,
    operator: OperatorProfile,
    device: DeviceFacts,
    plan: Plan | None,
    steps: int,
    seed: int,
    mode: MemoryMode,
) -> SelectionState:
    """What selection attends to before the first step of a run. `plan`: the one that the first step edits."""
    from htam_agent.tracing import features_of

    architecture = re.fullmatch(r"sm_(\d+)a?", device.architecture)
    return SelectionState(
        task=task,
        backend=device.backend,
        features=features_of(operator),
        operators=operator.operators,
        compute_capability=int(architecture[1]) if architecture else None,
        plan_mapping=plan.mapping if plan else None,
        plan_staging=plan.staging if plan else None,
        plan_strategies=plan.strategies if plan else (),
        device=device,
        steps_left=steps,
        seed=seed + 1,
        mode=mode,
    )


def explain(state: SelectionState, store: Memory) -> MemoryWhy:
    """The memory's answers in this state, all from what it holds now."""
    memory = store.index
    scored = score_directions(state, memory)
    chosen = scored[0].direction if scored else None
    found = retrieve_strategies(state, chosen, memory, limit=SHOWN_STRATEGIES) if chosen else []
    assert state.device is not None, "a first state has its device"
    return MemoryWhy(
        schema_="htam.memory/1",
        task=state.task,
        backend=state.backend,
        device=state.device.name,
        operators=state.operators,
        features=state.features,
        mode=state.mode,
        seed=state.seed - 1,
        chosen=chosen,
        strategies=[
            WhyStrategy(id=one.strategy.id, title=one.strategy.title, score=one.score, why=one.why) for one in found
        ],
        directions=scored,
        masked=masked_directions(state, memory),
        refused=_refused(state, chosen, memory),
    )


def _refused(state: SelectionState, direction: str | None, memory: Memory) -> dict[str, str]:
    own = [one for one in memory.strategies.values() if one.direction == direction and one.backend == state.backend]
    reasons = {one.id: applicable(one, state) for one in own}
    return {name: reason for name, reason in sorted(reasons.items()) if reason is not None}


def in_words(found: MemoryWhy) -> Sequence[str]:
    """Lines for people."""
    lines = [f"{found.task}: a {found.features.operator_class} for {found.backend} on {found.device}"]
    if found.chosen is None:
        lines.append("No direction has a strategy that applies.")
    for place, direction in enumerate(found.directions, start=1):
        lines.append(f"{place:>3}. {direction.direction:<24} {direction.score:+.3f}")
        lines += [
            f"       {term.name:<12} {term.share:+.3f}"
            + (f" x {term.counts:4.1f}" if term.counts else " added ")
            + f"  {term.detail}"
            for term in direction.terms
        ]
        lines += [
            f"       {one.weight:.2f} of {one.strategy} on {one.task}: {one.verdict}, {one.share:+.2f} ({one.id})"
            for one in direction.experiences
        ]
        if place == 1:
            lines.append("       its strategies:")
            lines += [f"         {one.score:+.3f} {one.id}: {one.why}" for one in found.strategies]
            lines += [f"         not {name}: {reason}" for name, reason in found.refused.items()]
    lines += [f"  -  {name:<24} masked: {reason}" for name, reason in sorted(found.masked.items())]
    return lines
