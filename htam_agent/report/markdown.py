"""The report of a run as Markdown: for people, beside the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from htam_agent.runs.folder import write_atomically

if TYPE_CHECKING:
    from htam_agent.operator import OperatorProfile
    from htam_agent.runs.folder import RunFolder
    from htam_agent.runs.records import Result
    from htam_agent.verdict import Times


def write_report(folder: RunFolder, result: Result, operator: OperatorProfile) -> None:
    """Write report.md into the run's folder."""
    write_atomically(folder.path("report.md"), render_report(result, operator))


def render_report(result: Result, operator: OperatorProfile) -> str:
    """The report's text."""
    lines = [
        f"# {result.task}",
        "",
        f"{_headline(result)}",
        "",
        f"- device: {result.device} (backend {result.backend}), precision {result.precision}, policy {result.policy}",
        *([f"- memory mode: {result.memory_mode}"] if result.memory_mode != "full" else []),
        f"- operator: {', '.join(operator.operators) or operator.untraceable}",
        f"- unavoidable bytes: {operator.unavoidable_bytes:,}; operations: {operator.operations:,}",
        f"- ended because: {result.reason or 'the run is complete'}",
        "",
        "## Times",
        "",
        *_times(result.times_ms),
        "",
        "## Steps",
        "",
        "| step | direction | why | strategy | verdict | ms | over best |",
        "|---|---|---|---|---|---|---|",
    ]
    for step in result.steps:
        times = [candidate.time_ms for candidate in step.candidates if candidate.time_ms is not None]
        cells = (
            str(step.step),
            step.direction,
            step.why,
            step.strategy,
            step.verdict + (f": {step.reason}" if step.reason else ""),
            f"{min(times):.4g}" if times else "",
            f"{step.speedup.best:.3f}" if step.speedup.best is not None else "",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    if result.cost.models:
        lines += ["", "## Models", "", *_models(result)]
    if result.profile is not None:
        lines += ["", "## Where the kernel stands", "", result.profile.diagnosis]
    return "\n".join(lines) + "\n"


def _headline(result: Result) -> str:
    if result.kernel is None:
        return f"No kernel is returned; the original is kept ({result.verdict})."
    speed = f"{result.speedup.best:.3f}x over best" if result.speedup.best is not None else result.speedup.reason
    interval = f", interval {result.interval.low:.3f} to {result.interval.high:.3f}" if result.interval else ""
    return f"A correct kernel, {speed}{interval}; {'faster' if result.faster else 'not shown to be faster'}."


def _models(result: Result) -> list[str]:
    """What each role's model took, step by step and in all; ~ where the endpoint did not count."""
    rows = ["| step | role | calls | tokens in | tokens out | USD |", "|---|---|---|---|---|---|"]
    used = [(str(step.step), use) for step in result.steps for use in step.models]
    for place, use in [*used, *(("all", use) for use in result.cost.models)]:
        about = "~" if use.estimated else ""
        usd = f"{use.usd:.4f}" if use.usd is not None else "price not known"
        cells = (
            place,
            use.role,
            str(use.calls),
            f"{about}{use.prompt_tokens:,}",
            f"{about}{use.completion_tokens:,}",
            usd,
        )
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _times(times: Times) -> list[str]:
    rows = ["| what | ms |", "|---|---|"]
    for name, value in times.model_dump().items():
        if value is not None:
            rows.append(f"| {name} | {value:.4g} |")
    return rows
