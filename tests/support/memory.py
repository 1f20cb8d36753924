"""Records for the memory's tests: small, complete, and different only in what a test names."""

from __future__ import annotations

from dataclasses import replace

from htam_agent.memory.embed import HashingEmbedder
from htam_agent.memory.index import MemoryIndex
from htam_agent.memory.model import Direction, Experience, Preconditions, SelectionState, Strategy, Transition
from htam_agent.memory.seeding import Seed
from htam_agent.operator import OperatorFeatures
from htam_agent.verdict import DeviceFacts

FEATURES = OperatorFeatures(
    operator_class="softmax",
    dtype="float32",
    rows=4096,
    columns=1024,
    row_bytes=4096,
    reductions=2,
    full_inputs=1,
    transcendentals=1,
    arithmetic_intensity=1.0,
    unavoidable_bytes=2 * 4096 * 4096,
)
TASK = "softmax-0123456789ab"
DEVICE = DeviceFacts(backend="cpp", name="A CPU", architecture="x86_64")


def features(**changes: object) -> OperatorFeatures:
    return FEATURES.model_validate({**FEATURES.model_dump(), **changes})


def direction(name: str, **symptoms: float) -> Direction:
    return Direction.model_validate(
        {"id": name, "title": name.title(), "intent": f"Do {name}.", "when": "Often.", "symptoms": symptoms}
    )


def strategy(name: str, owner: str, *, backend: str = "cpp", how: str = "Do it well.", **needs: object) -> Strategy:
    return Strategy.model_validate(
        {
            "id": name,
            "direction": owner,
            "backend": backend,
            "title": name.replace("-", " "),
            "how": how,
            "preconditions": Preconditions.model_validate(needs),
        }
    )


def transition(source: str, target: str, prior: float, pseudo_counts: float = 2.0) -> Transition:
    return Transition(
        source=source,
        target=target,
        when="It is time.",
        why=f"{source} prepares {target}.",
        risk=f"{target} may be useless.",
        prior=prior,
        pseudo_counts=pseudo_counts,
    )


def state(**changes: object) -> SelectionState:
    """Of the task that `experience` was measured on."""
    fields = {"backend": "cpp", "features": FEATURES, "operators": ["aten.exp"], "device": DEVICE, "task": TASK}
    return SelectionState.model_validate({**fields, **changes})


def experience(name: str, owner: str, used: str, share: float | None = 0.5, **changes: object) -> Experience:
    """A step that closed `share` of the gap between 8 ms and a floor of 2 ms; None is a failure."""
    fields: dict[str, object] = {
        "id": name,
        "run": "run",
        "step": 1,
        "candidate": 0,
        "task": TASK,
        "features": FEATURES,
        "precision": "ieee",
        "bottleneck": "unknown",
        "steps_left": 1,
        "direction": owner,
        "strategy": used,
        "verdict": "failed" if share is None else "correct",
        "time_before_ms": 8.0,
        "time_after_ms": None if share is None else 8.0 * (2.0 / 8.0) ** share,
        "floor_ms": 2.0,
        "device": DEVICE,
    }
    return Experience.model_validate({**fields, **changes})


DIRECTIONS = (direction("wide", memory=1.0, unknown=0.6), direction("reuse", memory=0.8, unknown=0.5))
STRATEGIES = (
    strategy("wide-loads", "wide"),
    strategy("wide-stores", "wide"),
    strategy("keep-row", "reuse"),
    strategy("keep-row-on-gpu", "reuse", backend="cuda"),
)
TRANSITIONS = (
    transition("start", "wide", 0.3),
    transition("start", "reuse", 0.2),
    transition("wide", "reuse", 0.4),
    transition("reuse", "wide", 0.1),
)
SEED = Seed(DIRECTIONS, STRATEGIES, TRANSITIONS)


def index(*experiences: Experience, **changes: tuple[Direction | Strategy | Transition, ...]) -> MemoryIndex:
    """An index over the small seed; `strategies`, `transitions` or `directions` replace its own."""
    seed = replace(SEED, **changes)
    return MemoryIndex.of(HashingEmbedder(), seed.directions, seed.strategies, seed.transitions, experiences)
