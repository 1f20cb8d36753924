"""The result as Markdown, put between two marks of a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """Tables, figure and what the intervals say, for better and for worse."""
    summary, steps = result["summary"], result["steps"]
    tasks = len(summary["tasks"])
    lines = [
        f"{tasks} operators, {result['kernels']} kernels measured on {result['device']['name']} "
        f"({result['device']['threads']} threads), {result['chains']} chains a mode, "
        f"{steps} steps a task. Intervals: 95 %, bootstrap over tasks.",
        "",
        f"![Speedup by step and mode]({figure})",
        "",
        *_speedups(summary["modes"], steps),
        "",
        *_ratios(summary["against_full"], steps),
        *_dependence(result["path_dependence"]),
        "",
    ]
    return "\n".join(lines)


def _speedups(modes: Mapping[str, Any], steps: int) -> list[str]:
    half = max(1, steps // 2)
    lines = [
        f"| mode | correct | fast_1, {half} / {steps} steps | geomean, 1 step | {half} steps | {steps} steps |",
        "|---|---|---|---|---|---|",
    ]
    for mode, found in modes.items():
        cells = found["by_step"]
        row = [
            mode,
            f"{cells[steps - 1]['correct']:.1%}",
            f"{cells[half - 1]['fast_1']:.0%} / {cells[steps - 1]['fast_1']:.0%}",
            *(_geomean(cells[step - 1]) for step in (1, half, steps)),
        ]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def _ratios(against: Mapping[str, Any], steps: int) -> list[str]:
    """Every mode over `full` at every step, none left out, and in words where the interval does not hold 1."""
    if not against:
        return []
    lines = [
        "The geometric mean over that of `full`, paired by task (above 1: the mode is *better* without that part):",
        "",
        f"| over full | {' | '.join(f'step {step}' for step in range(1, steps + 1))} |",
        f"|---{'|---' * steps}|",
    ]
    lines += [
        f"| {mode} | {' | '.join(_with_interval(cell, 'ratio', 'interval') for cell in cells)} |"
        for mode, cells in against.items()
    ]
    count = sum(len(cells) for cells in against.values())
    return [
        *lines,
        "",
        "Where the interval does not hold 1:",
        "",
        *(f"- `{mode}`: {_verdict(cells)}." for mode, cells in against.items()),
        "",
        f"These are {count} intervals, none widened for their number: of {count} without any effect, about "
        f"{count / 20:.0f} would still exclude 1.",
        "",
    ]


def _verdict(cells: Sequence[Mapping[str, Any]]) -> str:
    """E.g. "better than `full` at step 1 (1.547), 2 (1.300)"."""
    known = [cell for cell in cells if cell["interval"] is not None]
    # Rounded as the table shows them: words and table must not contradict each other.
    better = [cell for cell in known if round(cell["interval"][0], 3) > 1.0]
    worse = [cell for cell in known if round(cell["interval"][1], 3) < 1.0]
    told = [
        f"{word} than `full` at step {', '.join(_step(cell) for cell in found)}"
        for word, found in (("better", better), ("worse", worse))
        if found
    ]
    return "; ".join(told) or "no difference from `full` at any step"


def _step(cell: Mapping[str, Any]) -> str:
    return f"{cell['step']} ({cell['ratio']:.3f})"


def _geomean(cell: Mapping[str, Any]) -> str:
    return _with_interval(cell, "geomean_kernel", "geomean_kernel_interval")


def _with_interval(cell: Mapping[str, Any], name: str, interval: str) -> str:
    if cell[name] is None:
        return "no kernel"
    low, high = cell[interval]
    return f"{cell[name]:.3f} [{low:.3f}, {high:.3f}]"


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
        "",
        "These shares are no proof that the path matters. Where strategies exclude each other, a new one takes the",
        "place of an old one, and its gain is less by what that one gave: so the strategies in the kernel explain",
        "gains even where all effects merely add up. And the fraction of the floor before holds the same noise as the",
        "time before, which is in the gain as well.",
    ]


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1%}"
