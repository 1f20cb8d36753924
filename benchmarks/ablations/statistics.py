"""What the chains came to: shares, geometric means and differences, with bootstrap intervals over tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.ablations.replay import Link
from htam_agent.memory.modes import MemoryMode

MODES: tuple[MemoryMode, ...] = get_args(MemoryMode)
RESAMPLES = 2000
THRESHOLDS = (1.0, 1.5, 2.0, 4.0)
Cell = dict[str, object]


def summary(links: Sequence[Link], steps: int) -> Cell:
    """Mode -> its figures, and, for every mode but `full`, how it compares with `full` on the same chains."""
    tasks = sorted({link.task for link in links})
    modes = [mode for mode in MODES if any(link.mode == mode for link in links)]
    found: dict[str, object] = {}
    for mode in modes:
        own = [link for link in links if link.mode == mode]
        found[mode] = {"by_step": [figures(own, tasks, step) for step in range(1, steps + 1)]}
    against = {
        mode: [compared(links, mode, tasks, step) for step in range(1, steps + 1)]
        for mode in modes
        if mode != "full" and "full" in modes
    }
    return {"tasks": tasks, "modes": found, "against_full": against}


def figures(links: Sequence[Link], tasks: Sequence[str], step: int) -> Cell:
    """Of one mode after `step` steps; the mean over a task's chains counts as one value of that task."""
    correct = by_task(links, tasks, lambda link: float(link.speedups[step - 1] is not None or at_floor(link)))
    logs = by_task(links, tasks, lambda link: kept_log(link, step))
    kernels = by_task(links, tasks, lambda link: kernel_log(link, step))
    known = kernels[~np.isnan(kernels)]
    cell: Cell = {
        "step": step,
        "correct": float(correct.mean()),
        "geomean_kernel": float(np.exp(known.mean())) if len(known) else None,
        "geomean_kernel_interval": interval(np.exp(resampled(known))) if len(known) else None,
        "geomean_returned": float(np.exp(logs.mean())),
        "geomean_returned_interval": interval(np.exp(resampled(logs))),
    }
    for threshold in THRESHOLDS:
        fast = by_task(links, tasks, lambda link, least=threshold: float((link.lows[step - 1] or 0.0) > least))
        cell[f"fast_{threshold:g}"] = float(fast.mean())
        cell[f"fast_{threshold:g}_interval"] = interval(resampled(fast))
    return cell


def compared(links: Sequence[Link], mode: str, tasks: Sequence[str], step: int) -> Cell:
    """The mode's geometric mean over that of `full`, paired by task: below 1, the mode is worse. `ratio` is of the best
    correct kernels, over the tasks where both modes have one; `returned_ratio` of what a user would get."""
    difference = _difference(links, mode, tasks, lambda link: kernel_log(link, step))
    difference = difference[~np.isnan(difference)]
    returned = _difference(links, mode, tasks, lambda link: kept_log(link, step))
    return {
        "step": step,
        "ratio": float(np.exp(difference.mean())) if len(difference) else None,
        "interval": interval(np.exp(resampled(difference))) if len(difference) else None,
        "returned_ratio": float(np.exp(returned.mean())),
        "returned_interval": interval(np.exp(resampled(returned))),
        "tasks_worse": int((difference < -0.005).sum()),
        "tasks_better": int((difference > 0.005).sum()),
    }


def _difference(
    links: Sequence[Link], mode: str, tasks: Sequence[str], value: Callable[[Link], float]
) -> NDArray[np.float64]:
    """[tasks]: of the mode minus of `full`."""
    of_mode, of_full = (by_task([link for link in links if link.mode == name], tasks, value) for name in (mode, "full"))
    return of_mode - of_full


def at_floor(link: Link) -> bool:
    """Whether the original itself is at the floor and was kept, which counts as correct and is no kernel."""
    return link.verdicts == ["at-floor"]


def kernel_log(link: Link, step: int) -> float:
    """Logarithm of the speedup of the best correct kernel; NaN where there is none."""
    speedup = link.speedups[step - 1]
    return math.log(speedup) if speedup is not None else math.nan


def kept_log(link: Link, step: int) -> float:
    """The same of what a user would get: the original where no kernel is faster."""
    return max(0.0, math.log(link.speedups[step - 1] or 1.0))


def by_task(links: Sequence[Link], tasks: Sequence[str], value: Callable[[Link], float]) -> NDArray[np.float64]:
    """[tasks]: mean of `value` over each task's chains, leaving out NaN; NaN where nothing is left."""
    found = []
    for task in tasks:
        values = [item for link in links if link.task == task and not math.isnan(item := value(link))]
        found.append(sum(values) / len(values) if values else math.nan)
    return np.array(found)


def resampled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[RESAMPLES]: means of resamples of the tasks, the same draws for every mode."""
    draws = np.random.default_rng(20261201).integers(0, len(values), (RESAMPLES, len(values)))
    means: NDArray[np.float64] = values[draws].mean(axis=1)
    return means


def interval(values: NDArray[np.float64]) -> list[float]:
    """The middle 95 %."""
    return [float(value) for value in np.quantile(values, [0.025, 0.975])]
