"""Selection as a whole, on chains of tasks in a made-up world that has what the memory attends to: strategies suit some
classes of operators, directions differ, and one direction prepares another. What the memory takes from it must pay."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

import pytest

from htam_agent.memory.attention import score_directions
from htam_agent.memory.index import MemoryIndex
from htam_agent.memory.model import SelectionState, Strategy
from htam_agent.memory.modes import MemoryMode
from htam_agent.memory.retrieval import retrieve_strategies
from tests.support.memory import direction, experience, features, index, state, strategy, transition

CLASSES = ("softmax", "reduction", "pointwise", "normalization")
DIRECTIONS = tuple(f"d{number}" for number in range(8))
SEEDS = range(5)
TASKS, STEPS = 24, 6


@dataclass
class World:
    """What each step really closes; the memory is given priors that are off by 0.1 to 0.15."""

    seed: int

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        plain = [strategy(f"{owner}-s{number}", owner) for owner in DIRECTIONS for number in range(4)]
        self.base = {one.id: draw.gauss(0.15, 0.15) for one in plain}
        self.of_class = {(kind, one.id): draw.gauss(0, 0.15) for kind in CLASSES for one in plain}
        self.of_direction = {(kind, owner): draw.gauss(0, 0.1) for kind in CLASSES for owner in DIRECTIONS}
        pairs = [(before, after) for before in ("start", *DIRECTIONS) for after in DIRECTIONS]
        self.of_path = {pair: draw.gauss(0, 0.12) for pair in pairs}
        self.strategies = tuple(
            one.model_copy(update={"prior": min(0.9, max(-0.9, self.base[one.id] + draw.gauss(0, 0.15)))})
            for one in plain
        )
        self.directions = tuple(direction(name, memory=draw.random(), unknown=draw.random()) for name in DIRECTIONS)
        self.transitions = tuple(
            transition(*pair, 0.15 + self.of_path[pair] + draw.gauss(0, 0.1)) for pair in pairs if draw.random() < 0.4
        )

    def memory(self) -> MemoryIndex:
        return index(directions=self.directions, strategies=self.strategies, transitions=self.transitions)

    def share(self, task: int, used: Strategy, before: str) -> float | None:
        """What the step closes; None for one in eight, which fails."""
        kind, draw = CLASSES[task % len(CLASSES)], random.Random(f"{self.seed} {task} {used.id} {before}")
        if draw.random() < 0.125:
            return None
        of_task = random.Random(f"{self.seed} {task} {used.id}").gauss(0, 0.1)
        parts = (self.base[used.id], self.of_class[kind, used.id], self.of_direction[kind, used.direction])
        share = sum(parts) + self.of_path[before, used.direction] + of_task + draw.gauss(0, 0.05)
        return min(0.95, max(-1.0, share))


def closed(world: World, mode: MemoryMode) -> float:
    """Mean share of the gap that runs close, over a chain of tasks with one memory."""
    memory = world.memory()
    return statistics.mean(run(world, memory, task, mode) for task in range(TASKS))


def run(world: World, memory: MemoryIndex, task: int, mode: MemoryMode) -> float:
    left, path, outcomes, tried, used = 1.0, list[str](), list[float](), list[str](), list[str]()
    draw = random.Random(f"{world.seed} {task}")
    operator = features(
        operator_class=CLASSES[task % len(CLASSES)], rows=2 ** draw.randint(8, 14), columns=2 ** draw.randint(6, 12)
    )
    for step in range(1, STEPS + 1):
        known = {
            "task": f"task-{task}", "run": f"run-{task}", "features": operator, "prefix": path,
            "prefix_outcomes": outcomes, "bottleneck": "memory" if used else "unknown",
            "steps_left": STEPS - step + 1,
        }  # fmt: skip
        here = state(mode=mode, tried=tried, plan_strategies=used, seed=1000 * world.seed + 100 * task + step, **known)
        chosen = taken(here, memory)
        share = world.share(task, chosen, path[-1] if path else "start")
        if mode != "no-update":
            name = f"run-{task}:{step}:0:0"
            memory.evidence.add(experience(name, chosen.direction, chosen.id, share, **known))
        path, outcomes = [*path, chosen.direction], [*outcomes, -0.1 if share is None else share]
        if outcomes[-1] > 0.005:
            left, used, tried = left * (1 - outcomes[-1]), [*used, chosen.id], [chosen.id]
        else:
            tried = [*tried, chosen.id]
    return 1 - left


def taken(here: SelectionState, memory: MemoryIndex) -> Strategy:
    first = score_directions(here, memory)[0]
    return retrieve_strategies(here, first.direction, memory)[0].strategy


@pytest.mark.slow
def test_each_part_that_the_world_rewards_pays() -> None:
    worlds = [World(seed) for seed in SEEDS]

    def mean(mode: MemoryMode) -> float:
        return statistics.mean(closed(world, mode) for world in worlds)

    full = mean("full")
    assert full > mean("no-update") + 0.02, "what was measured pays"
    assert full > mean("no-prefix") + 0.005, "the path pays"
    assert full > mean("no-local") + 0.05, "knowing strategies pays"
    assert full > mean("random") + 0.1
    assert full > mean("none") + 0.1
