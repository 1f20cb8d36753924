"""The result as Markdown, put between two marks of a document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN = "<!-- written by benchmarks/ablation.py: begin -->"
END = "<!-- written by benchmarks/ablation.py: end -->"


def put_into(document: Path, result: Mapping[str, Any], figure: str) -> None:
    """Replaces what stands between the marks. Raises ValueError when the document lacks them."""
    text = document.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{document} does not have the marks {BEGIN} and {END} once each.")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    document.write_text(f"{before}{BEGIN}\n{markdown(result, figure)}{END}{after}", encoding="utf-8")


def markdown(result: Mapping[str, Any], figure: str) -> str:
    """Tables and figure."""
    summary, steps = result["summary"], result["steps"]
    half = max(1, steps // 2)
    tasks = len(summary["tasks"])
    lines = [
        f"{tasks} operators, {result['kernels']} kernels measured on {result['device']['name']} "
        f"({result['device']['threads']} threads), {result['chains']} chains a mode, "
        f"{steps} steps a task. Intervals: 95 %, bootstrap over tasks.",
        "",
        f"![Speedup by step and mode]({figure})",
        "",
        f"| mode | correct | fast_1, {half} / {steps} steps | geomean, 1 step | {half} steps | {steps} steps "
        f"| over full, {half} steps | {steps} steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for mode, found in summary["modes"].items():
        cells = found["by_step"]
        against = summary["against_full"].get(mode)
        ratios = (
            [_with_interval(against[step - 1], "ratio", "interval") for step in (half, steps)] if against else ["", ""]
        )
        row = [
            mode,
            f"{cells[steps - 1]['correct']:.1%}",
            f"{cells[half - 1]['fast_1']:.0%} / {cells[steps - 1]['fast_1']:.0%}",
            *(_geomean(cells[step - 1]) for step in (1, half, steps)),
            *ratios,
        ]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, "", *_chain_words(summary, half), *_dependence(result["path_dependence"]), ""])


def _geomean(cell: Mapping[str, Any]) -> str:
    return _with_interval(cell, "geomean_kernel", "geomean_kernel_interval")


def _with_interval(cell: Mapping[str, Any], name: str, interval: str) -> str:
    if cell[name] is None:
        return "no kernel"
    low, high = cell[interval]
    return f"{cell[name]:.3f} [{low:.3f}, {high:.3f}]"


def _chain_words(summary: Mapping[str, Any], half: int) -> list[str]:
    """What was learned on the way, in the modes where that is the question."""
    lines = []
    for mode in ("full", "no-update"):
        found = summary["modes"].get(mode)
        if found:
            first = found["geomean_returned_first_half_of_the_chain"]
            second = found["geomean_returned_second_half_of_the_chain"]
            if first and second:
                lines.append(
                    f"- `{mode}`, after {half} steps: {first:.3f} over the first half of the chains, {second:.3f} over "
                    "the second."
                )
    return [*lines, ""] if lines else []


def _dependence(found: Mapping[str, Any]) -> list[str]:
    levels, gains = found["levels"], found["gains"]
    rows = [
        ("strategy", "the strategy that is added"),
        ("strategy_and_path", "and those in the kernel before"),
        ("strategy_and_measured", "and bottleneck and fraction of the floor before"),
        ("all", "all of these"),
    ]
    return [
        "Path dependence: share of the variance within tasks that is explained, of kernels and steps not seen before.",
        "",
        f"- log time of a kernel, within its task: single strategies {_share(levels['singles'])}, with pairs "
        f"{_share(levels['pairs'])}.",
        f"- gain of one step ({gains['steps']} steps):",
        "",
        "| from | learned on the same task | on the other tasks |",
        "|---|---|---|",
        *(
            f"| {words} | {_share(gains['same_task'][name])} | {_share(gains['other_tasks'][name])} |"
            for name, words in rows
        ),
    ]


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1%}"
