"""`htam evaluate --batch`: results as they come, the way on at the end.

Exit codes: 0 every entry has its result, whatever the verdicts; 1 entries remain (the budget ended): the same command
goes on; 2 every entry has its result, and some are errors of the input; 3 the machine failed at some (these are tried
again by the next run), or so often that the batch ended; 130 interrupted.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from htam_agent.cli.output import INTERRUPTED, print_json

if TYPE_CHECKING:
    from types import FrameType

    from htam_agent.batch.facts import TaskFacts
    from htam_agent.batch.results import BatchError, BatchSummary
    from htam_agent.judging import Evaluation
    from htam_agent.settings import Settings
    from htam_agent.words import Protocol


def run_batch(
    file: Path,
    settings: Settings,
    out: Path | None,
    budget_seconds: float | None,
    protocols: Sequence[Protocol],
    as_json: bool,
) -> int:
    """Runs the batch and prints each result and the summary; the exit code."""
    from htam_agent.batch.running import Batch

    again = False
    with (
        _drained_by_interrupt() as stop,
        Batch(file, settings, out=out, budget_seconds=budget_seconds, protocols=protocols, stop=stop) as batch,
    ):
        for result in batch.run():
            again = again or getattr(result, "again", False)
            if as_json:
                print_json(result.to_json())
            else:
                typer.echo(result_line(result))
        summary = batch.summary()
    if as_json:
        print_json(summary.to_json())
    else:
        typer.echo(summary_text(summary))
    code = exit_code(summary, again)
    if code == INTERRUPTED:
        raise SystemExit(code)  # returned, it would be taken for a Ctrl-C that nobody handled
    return code


def exit_code(summary: BatchSummary, again: bool) -> int:
    """See the module's text; `again`: an entry of this run is to be tried again."""
    if summary.ended == "interrupted":
        return INTERRUPTED
    if summary.ended == "fault":
        return 3
    if summary.remaining:
        return 1
    if again:
        return 3
    return 2 if summary.errors else 0


def result_line(result: Evaluation | TaskFacts | BatchError) -> str:
    """One result for people, on one line."""
    from htam_agent.batch.facts import TaskFacts
    from htam_agent.judging import Evaluation

    if isinstance(result, TaskFacts):
        best, floor = result.baselines.best, result.baselines.floor
        times = ", ".join(f"{name} {time:.4g} ms" for name, time in (("best", best), ("floor", floor)) if time)
        return f"{result.id or f'line {result.line}'} for {result.task}: facts of {result.device.name}, {times}"
    name = result.id or result.kernel or f"line {result.line}"
    if not isinstance(result, Evaluation):
        return f"{name}: error {result.error.code}: {result.error.message}"
    best, interval = result.speedup.best, result.interval
    speed = f", {best:.3f}x over best" if best is not None else ""
    between = f" ({interval.low:.3f} to {interval.high:.3f})" if interval else ""
    reason = f" at {result.stage}: {result.reason}" if result.reason else ""
    return f"{name} for {result.task}: {result.verdict}{speed}{between}{reason}"


def summary_text(summary: BatchSummary) -> str:
    """The end for people: what there is now, and what remains."""
    counts = [f"{count} {verdict}" for verdict, count in summary.verdicts.items()]
    counts += [f"{summary.facts} facts"] if summary.facts else []
    counts += [f"{summary.errors} errors"] if summary.errors else []
    before = f" ({summary.before} in earlier runs)" if summary.before else ""
    done = f"{summary.before + summary.now} of {summary.entries} entries have a result{before}"
    lines = [done + (f": {', '.join(counts)}" if counts else "") + f"; {summary.seconds:.1f} s"]
    if summary.repaired_bytes:
        lines.append(f"a torn last line of {summary.repaired_bytes} bytes was cut off; its entry was judged anew")
    if summary.remaining:
        lines.append(f"{summary.remaining} remain ({summary.ended}): the same command goes on with them")
    return "\n".join([*lines, f"results: {summary.out}"])


@contextmanager
def _drained_by_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets the entry under way finish, a second one ends at once. Gives what tells of the first."""
    seen: list[int] = []

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        typer.echo("Stopping after the entry under way (Ctrl-C again: at once).", err=True)

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, previous)
