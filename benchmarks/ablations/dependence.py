"""Does the path matter in the table at all? Variance of log times that strategies alone, and their pairs, explain.

Two questions, both answered by cross-validation (ten folds, ridge regression), as the share of the variance within
tasks that a model explains of kernels or steps that it has not seen:

- *levels*: log time of a kernel, from the single strategies in it, and from their pairs as well, within each task.
  What the pairs add is what no choice of one strategy at a time can know.
- *gains*: log(time before / time after) of one step, from the strategy that it adds; with the strategies already in the
  kernel (what was done on the way); and with what was measured on the way (the bottleneck and the fraction of the floor
  of the kernel before). `same_task` has coefficients of its own for each task; `other_tasks` leaves the whole task out
  and predicts it from the others, as a memory must on a new task.

The order in which strategies were added is not among the causes: plans that say the same are one kernel, so a time
depends on the set that is in force and not on the path to it. Position can matter only as a stand-in for that set, or
through strategies that replace each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.plans.table import KernelRow, Table

FOLDS = 10
RIDGES = (0.01, 0.3, 10.0)
INNER = 3
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """One move between two correct kernels."""

    task: str
    strategy: str
    before: KernelRow
    gain: float


def dependence(table: Table) -> dict[str, object]:
    """All shares; None where a table is too small to say."""
    return {"levels": levels(table), "gains": gains(table)}


def levels(table: Table) -> dict[str, object]:
    """Per task and pooled."""
    found: dict[str, object] = {}
    pooled: dict[str, list[tuple[float, float]]] = {"singles": [], "pairs": []}
    for task in table.complete():
        rows = [row for row in table.of_task(task) if row.time_ms]
        names = sorted({name for row in rows for name in row.strategies})
        target = np.array([math.log(row.time_ms or 1.0) for row in rows])
        own: dict[str, object] = {"kernels": len(rows), "variance": float(target.var())}
        for kind, describe in (("singles", singles), ("pairs", with_pairs)):
            features = np.array([describe(row.strategies, names) for row in rows])
            errors = unexplained(features, target, folds_of(len(rows)))
            own[kind] = share(errors)
            if errors is not None:
                pooled[kind].append(errors)
        found[task] = own
    return {"tasks": found, **{kind: share_of_all(values) for kind, values in pooled.items()}}


def gains(table: Table) -> dict[str, object]:
    """Pooled over tasks, from within the task and from the others."""
    steps = [step for task in table.complete() for step in steps_of(table, task)]
    names = sorted({step.strategy for step in steps})
    models: dict[str, Callable[[Step], list[float]]] = {
        "strategy": lambda step: of_strategy(step, names),
        "strategy_and_path": lambda step: of_strategy(step, names) + of_path(step, names),
        "strategy_and_measured": lambda step: of_strategy(step, names) + of_measured(step, names),
        "all": lambda step: of_strategy(step, names) + of_path(step, names) + of_measured(step, names),
    }
    answer: dict[str, object] = {"steps": len(steps)}
    for kind in ("same_task", "other_tasks"):
        answer[kind] = {name: explained_gains(steps, model, kind == "other_tasks") for name, model in models.items()}
    return answer


def steps_of(table: Table, task: str) -> list[Step]:
    """The moves of a task whose both ends were timed."""
    found = []
    for start, strategy, end in table.tasks[task].moves:
        before, after = table.kernels.get((task, start)), table.kernels.get((task, end))
        if before and after and before.time_ms and after.time_ms:
            found.append(Step(task, strategy, before, math.log(before.time_ms / after.time_ms)))
    return found


def explained_gains(steps: Sequence[Step], model: Callable[[Step], list[float]], others: bool) -> float | None:
    """Share of the variance of gains within tasks."""
    tasks = sorted({step.task for step in steps})
    if not steps or (others and len(tasks) < 3):
        return None
    features = np.array([model(step) for step in steps])
    target = np.array([step.gain for step in steps])
    places = np.array([tasks.index(step.task) for step in steps])
    if others:
        return share_of_all([error for error in [unexplained(features, target, places, places)] if error])
    parts = []
    for place in range(len(tasks)):
        chosen = places == place
        error = unexplained(features[chosen], target[chosen], folds_of(int(chosen.sum())))
        if error is not None:
            parts.append(error)
    return share_of_all(parts)


def singles(strategies: Sequence[str], names: Sequence[str]) -> list[float]:
    """1 for each strategy in the kernel."""
    return [float(name in strategies) for name in names]


def with_pairs(strategies: Sequence[str], names: Sequence[str]) -> list[float]:
    """The same, and 1 for each pair in the kernel."""
    alone = singles(strategies, names)
    return alone + [left * right for left, right in itertools.combinations(alone, 2)]


def of_strategy(step: Step, names: Sequence[str]) -> list[float]:
    return [float(name == step.strategy) for name in names]


def of_path(step: Step, names: Sequence[str]) -> list[float]:
    """1 for each pair of the added strategy and one that is in the kernel already."""
    return [
        float(name == step.strategy and other in step.before.strategies)
        for name in names
        for other in names
        if name != other
    ]


def of_measured(step: Step, names: Sequence[str]) -> list[float]:
    """The strategy with the bottleneck before, and with the logarithm of the fraction of the floor."""
    fraction = math.log(max(step.before.fraction_of_floor or 1.0, 1e-6))
    kinds = ("memory", "compute", "latency", "launch")
    return [
        value
        for name in names
        for value in (
            fraction * (name == step.strategy),
            *(float(name == step.strategy and step.before.bottleneck == kind) for kind in kinds),
        )
    ]


def folds_of(count: int) -> NDArray[np.int64]:
    """[count]: a fold for each row, the same for every model."""
    return np.random.default_rng(7).permutation(count) % FOLDS


def unexplained(
    features: Array, target: Array, folds: NDArray[np.int64], centres: NDArray[np.int64] | None = None
) -> tuple[float, float] | None:
    """(squared errors of prediction, squared deviations from the mean), both over all rows; with `centres` deviations
    are from the mean of the row's own group. None for fewer than two rows a fold, or without variance."""
    if len(target) < 2 * FOLDS:
        return None
    groups = centres if centres is not None else np.zeros(len(target), dtype=np.int64)
    means = np.array([target[groups == group].mean() for group in groups])
    total = float(((target - means) ** 2).sum())
    if total < 1e-12:
        return None
    return Regression(features, target, folds).error(), total


class Regression:
    """Ridge regression with a free intercept, cross-validated. The penalty of each fold is the one of RIDGES that
    predicts the next INNER folds best from the rest, so that the held fold decides nothing."""

    def __init__(self, features: Array, target: Array, folds: NDArray[np.int64]) -> None:
        features = features[:, features.any(axis=0)]  # most pairs never occur
        rows = np.column_stack([features, np.ones(len(target))])
        self._names: list[int] = sorted(set(folds.tolist()))
        self._rows = {name: rows[folds == name] for name in self._names}
        self._targets = {name: target[folds == name] for name in self._names}
        self._squares = {name: part.T @ part for name, part in self._rows.items()}
        self._products = {name: part.T @ self._targets[name] for name, part in self._rows.items()}
        self._penalty = np.array([1.0] * features.shape[1] + [1e-9])

    def error(self) -> float:
        """Squared errors over all folds, each predicted from the others."""
        return sum(self._error_of(name, [name], self._chosen(place)) for place, name in enumerate(self._names))

    def _chosen(self, place: int) -> float:
        held = self._names[place]
        count = min(INNER, len(self._names) - 2)
        inner = [self._names[(place + step) % len(self._names)] for step in range(1, count + 1)]
        errors = {ridge: sum(self._error_of(name, [held, name], ridge) for name in inner) for ridge in RIDGES}
        return min(RIDGES, key=lambda ridge: (errors[ridge], -ridge))

    def _error_of(self, name: int, without: Sequence[int], ridge: float) -> float:
        kept = [other for other in self._names if other not in without]
        squares = sum(self._squares[other] for other in kept) + np.diag(ridge * self._penalty)
        weights = np.linalg.solve(squares, sum(self._products[other] for other in kept))
        return float(((self._targets[name] - self._rows[name] @ weights) ** 2).sum())


def share(error: tuple[float, float] | None) -> float | None:
    """Explained share: 1 minus errors over deviations; below 0 a model is worse than the mean."""
    return None if error is None else 1.0 - error[0] / error[1]


def share_of_all(errors: Sequence[tuple[float, float]]) -> float | None:
    """The same, pooled."""
    return share((sum(error for error, _ in errors), sum(total for _, total in errors))) if errors else None
