"""The figures of docs/memory.md, as SVG and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

COLOURS = {
    "full": "#1b1b1b", "no-hierarchy": "#d55e00", "no-local": "#e69f00", "random": "#cc79a7", "no-prefix": "#0072b2",
    "no-position": "#56b4e9", "no-update": "#009e73", "none": "#999999",
}  # fmt: skip


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Speedup by step and mode, and each mode against full. Needs matplotlib (the extra `plot`)."""
    import matplotlib as mpl

    mpl.use("Agg")
    # Text as text, no date and fixed ids: the same numbers give the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "htam", "font.size": 10})
    import matplotlib.pyplot as plt

    summary = result["summary"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6))
    _by_step(left, summary["modes"])
    _against_full(right, summary["against_full"])
    figure.suptitle(
        f"{len(summary['tasks'])} operators on a processor, {result['chains']} chains a mode, replayed from the table"
    )
    figure.tight_layout()
    files = [folder / f"ablation-cpu.{kind}" for kind in ("svg", "png")]
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(files[0], metadata={"Date": None})
    figure.savefig(files[1], dpi=130, metadata={"Software": None})
    plt.close(figure)
    return files


def _by_step(axes: Any, modes: Mapping[str, Any]) -> None:
    for mode, found in modes.items():
        steps = [cell["step"] for cell in found["by_step"]]
        means = [cell["geomean_kernel"] for cell in found["by_step"]]
        width, order = (2.6, 3) if mode == "full" else (1.5, 2)
        axes.plot(steps, means, marker="o", ms=4, lw=width, zorder=order, color=COLOURS[mode], label=mode)
    full = modes.get("full")
    if full is not None:
        known = [cell for cell in full["by_step"] if cell["geomean_kernel"] is not None]
        low, high = zip(*(cell["geomean_kernel_interval"] for cell in known), strict=True)
        axes.fill_between([cell["step"] for cell in known], low, high, color=COLOURS["full"], alpha=0.08)
    axes.axhline(1.0, color="#1b1b1b", lw=0.8, ls=":")
    axes.set_xlabel("step")
    axes.set_ylabel("best kernel over eager, geometric mean")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)


def _against_full(axes: Any, against: Mapping[str, Any]) -> None:
    """At every step, with the bootstrap intervals over tasks; side by side, so that no interval hides another."""
    for place, (mode, cells) in enumerate(against.items()):
        known = [cell for cell in cells if cell["ratio"] is not None]
        shift = 0.09 * (place - (len(against) - 1) / 2)
        for cell in known:
            axes.plot([cell["step"] + shift] * 2, cell["interval"], color=COLOURS[mode], lw=1.2)
        places = [cell["step"] + shift for cell in known]
        axes.plot(places, [cell["ratio"] for cell in known], marker="o", ms=4, lw=0.8, color=COLOURS[mode], label=mode)
    axes.axhline(1.0, color="#1b1b1b", lw=1)
    axes.set_yscale("log")
    ticks = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_xlabel("step")
    axes.set_ylabel("over full (below 1: worse), 95 % intervals")
    axes.grid(axis="y", alpha=0.3)
