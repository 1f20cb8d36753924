"""Live progress on stderr, the table at the end, and Ctrl-C: stop at a node boundary and say how to go on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from htam_agent.cli.output import print_json
from htam_agent.graph.events import Event
from htam_agent.plain_text import plain_line

if TYPE_CHECKING:
    from types import FrameType

    from langgraph.runtime import RunControl

    from htam_agent.runs.records import Cost, Result
    from htam_agent.runs.waiting import Waiting
    from htam_agent.settings import Settings

Listener = Callable[[Event], None]


def run_with_progress(work: Callable[[Listener, RunControl], Result], settings: Settings, as_json: bool) -> Result:
    """Run `work` with a listener and a control that the first Ctrl-C drains; print the result in the asked form.

    Raises Interrupted when the run was stopped, at a node boundary or at once, and SystemExit when it waits, which is
    printed.
    """
    from langgraph.runtime import RunControl

    from htam_agent.graph.runner import Interrupted, Paused
    from htam_agent.logging import set_up_logging

    set_up_logging(settings.log_level, settings.log_format)
    control = RunControl()
    restore = _drain_on_interrupt(control)
    try:
        result = work(_listener(settings.log_format), control)
    except KeyboardInterrupt as error:
        if error.args:  # the run's folder
            raise Interrupted(Path(str(error.args[0]))) from error
        raise
    except Paused as paused:
        if as_json:
            print_json(paused.waiting.to_json())
        else:
            typer.echo(waiting_text(paused.waiting))
        raise SystemExit(paused.exit_code) from None
    finally:
        restore()
    if as_json:
        print_json(result.to_json())
    else:
        _print_result(result)
    return result


def waiting_text(waiting: Waiting) -> str:
    """What a run waits for, and how to answer, for people."""
    from htam_agent.graph.runner import how_to_answer

    lines = [f"{waiting.run} waits for {waiting.text}."]
    lines += [f"  {one.direction} ({one.score:.3f}): {plain_line(one.why)}" for one in waiting.directions]
    lines += [f"  {one.kernel}" for one in waiting.candidates if waiting.kind == "code"]
    lines += [f"The last answer was refused: {plain_line(waiting.problem)}"] if waiting.problem else []
    return "\n".join([*lines, how_to_answer(waiting)])


def _drain_on_interrupt(control: RunControl) -> Callable[[], None]:
    """The first Ctrl-C asks the graph to stop before its next node; a second one interrupts at once."""

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if control.drain_requested:
            raise KeyboardInterrupt
        control.request_drain("interrupted")
        typer.echo("Stopping after the node under way (Ctrl-C again: at once).", err=True)

    previous = signal.signal(signal.SIGINT, on_interrupt)

    def restore() -> None:
        signal.signal(signal.SIGINT, previous)

    return restore


def _listener(log_format: str) -> Listener:
    """Progress as structured log lines on stderr (json), or as short lines for people (console)."""
    if log_format == "json":
        import structlog

        log = structlog.get_logger("htam")

        def write(event: Event) -> None:
            fields = {name: value for name, value in event.items() if name not in ("kind", "time")}
            log.info(event["kind"], **fields)

        return write
    return lambda event: typer.echo(progress_line(event), err=True)


def progress_line(event: Event) -> str:
    """One event as a line: "  2  direction    memory-access: ..."."""
    step = f"{event['step']:3d}" if "step" in event else "   "
    step += f".{event['candidate']}" if event.get("candidate") else ""
    text = event["text"]
    if event.get("why"):
        text += f": {event['why']}"
    speedup = event.get("speedup")
    if speedup is not None:
        text += f", {speedup:.2f}x over best"
    best, floor = event.get("best"), event.get("floor")
    if best is not None:
        text += f"; best baseline {best:.4g} ms" + (f", floor {floor:.4g} ms" if floor is not None else "")
    return f"{step}  {event['kind']:<11} {text}"


def _print_result(result: Result) -> None:
    """The table of steps and the kernel's path, on stdout."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    # A pipe or a log has no width: there a narrow default would cut the words that the table is for.
    console = console if console.is_terminal else Console(width=160)
    table = Table(title=f"{result.task} on {result.device} ({result.backend})")
    for name in ("step", "direction", "why", "strategy", "verdict", "ms", "speedup"):
        numeric, whole = name in ("step", "ms", "speedup"), name in ("direction", "strategy")
        table.add_column(name, overflow="fold", justify="right" if numeric else "left", no_wrap=whole)
    for step in result.steps:
        times = [candidate.time_ms for candidate in step.candidates if candidate.time_ms is not None]
        verdict = step.verdict + (f": {step.reason}" if step.reason else "") + (" (new best)" if step.improved else "")
        cells = (
            str(step.step),
            step.direction,
            short_reason(step.why),
            step.strategy,
            verdict,
            f"{min(times):.4g}" if times else "",
            f"{step.speedup.best:.2f}x" if step.speedup.best is not None else "",
        )
        # Text, not markup: a reason may hold square brackets from a compiler, and a model's refusal anything.
        table.add_row(*(Text(plain_line(cell)) for cell in cells))
    console.print(table)
    for line in summary_lines(result):
        console.print(Text(line), soft_wrap=True)


def short_reason(why: str) -> str:
    """The score and what speaks for the direction most plainly; all terms stand in the live progress and the report."""
    terms = why.rstrip(".").split("; ")
    plain = next((term for term in terms[1:] if ": " in term), terms[1] if len(terms) > 1 else "")
    score = terms[0].removesuffix(" of the remaining gap expected")
    return f"{score}: {plain.split(' (risk: ')[0]}" if plain else score


def cost_lines(cost: Cost) -> list[str]:
    """What the models took, role by role; nothing where none was asked."""
    if not cost.models:
        return []
    usd = "price not known" if cost.usd is None else f"${cost.usd:.4f}"
    about = "about " if any(use.estimated for use in cost.models) else ""
    roles = ", ".join(f"{use.role} {use.tokens:,} in {use.calls}" for use in cost.models)
    return [f"models: {about}{cost.tokens:,} tokens, {usd} (calls: {roles})"]


def summary_lines(result: Result) -> list[str]:
    """What the run came to, in words."""
    lines = [f"ended: {plain_line(result.reason)}"] if result.reason else []
    if result.unfinished:
        lines.append(f"it can go on: htam resume {result.run}")
    lines += cost_lines(result.cost)
    if result.kernel is None:
        return [*lines, f"no kernel: the original is kept ({result.verdict})", f"report: {result.run}/report.md"]
    speed = [f"{name} {value:.2f}x" for name, value in result.speedup if isinstance(value, float)]
    interval = f" (interval {result.interval.low:.2f} to {result.interval.high:.2f})" if result.interval else ""
    lines.append(f"measured again, fresh: {result.verdict}; speedup over {', '.join(speed)}{interval}")
    return [*lines, f"kernel: {result.kernel}", f"report: {result.run}/report.md"]
