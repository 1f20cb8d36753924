"""An evaluation for people: the verdict, why, how fast against whom, and what was not done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from htam_agent.judging import Evaluation
    from htam_agent.verdict import Check, Interval

MARGIN = 16
BASELINES = ("best", "eager", "eager_tf32", "compile")


def print_evaluation(evaluation: Evaluation) -> None:
    """The rows on stdout."""
    typer.echo("\n".join(evaluation_lines(evaluation)))


def evaluation_lines(evaluation: Evaluation) -> list[str]:
    """A headline and one row a subject; what failed comes first."""
    rows = [
        *_failed(evaluation),
        ("protocols", _protocols(evaluation)),
        ("speedup", _speedup(evaluation)),
        ("time", _time(evaluation)),
        *_notes(evaluation),
        ("confinement", _confinement(evaluation)),
        ("not done", evaluation.speedup.reason),
    ]
    return [_headline(evaluation), *(line for name, text in rows if text for line in _row(name, text))]


def _headline(evaluation: Evaluation) -> str:
    best = evaluation.speedup.best
    faster = " (faster)" if evaluation.faster else " (not faster)" if best is not None else ""
    speed = f", {best:.3f}x over best{_between(evaluation.interval)}{faster}" if best is not None else ""
    reason = f": {evaluation.reason}" if evaluation.reason else ""
    stage = "" if evaluation.verdict == "correct" else f" at {evaluation.stage}"
    where = f"{evaluation.task}, {evaluation.device}, {evaluation.precision}, {evaluation.policy}"
    return f"{evaluation.kernel}: {evaluation.verdict.upper()}{stage}{reason}{speed}\n{'':{MARGIN}}{where}"


def _between(interval: Interval | None) -> str:
    return f" [{interval.low:.3f}, {interval.high:.3f}]" if interval else ""


def _row(name: str, text: str) -> list[str]:
    first, *rest = text.splitlines()
    return [f"  {name:<{MARGIN - 2}}{first}", *(f"{'':{MARGIN}}{line}" for line in rest)]


def _failed(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Checks that failed, each with its detail unless the headline says it; those that say the same are one row."""
    names: dict[str, list[str]] = {}
    for check in evaluation.checks:
        if not check.passed:
            names.setdefault(check.detail, []).append(check.name)
    rows = []
    for detail, who in names.items():
        told = "" if detail and detail in evaluation.reason else detail.removeprefix(f"{evaluation.reason}\n")
        if told or who != [evaluation.stage]:
            rows.append(("FAILED", ", ".join(who) + (f": {told}" if told else "")))
    return rows


def _protocols(evaluation: Evaluation) -> str:
    """Side by side, the one that decides first."""
    deciding = evaluation.protocol
    order = sorted(evaluation.protocols, key=lambda name: name != deciding)
    marks = {deciding: " (decides)"}
    return ", ".join(f"{name} {evaluation.protocols[name]}{marks.get(name, '')}" for name in order)


def _speedup(evaluation: Evaluation) -> str:
    found = {name: getattr(evaluation.speedup, name) for name in BASELINES}
    known = [f"{name} {value:.3f}x" for name, value in found.items() if value is not None]
    missing = [name for name, value in found.items() if value is None]
    return ", ".join(known) + (f" (no {', '.join(missing)})" if missing else "") if known else ""


def _time(evaluation: Evaluation) -> str:
    times = evaluation.times_ms
    if times.candidate is None:
        return ""
    words = [f"{times.candidate:.4g} ms a call"]
    words += [f"best {times.best:.4g} ms"] if times.best is not None else []
    if times.floor:
        words.append(f"floor {times.floor:.4g} ms ({times.floor / times.candidate:.0%} of it reached)")
    return ", ".join(words)


def _notes(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Checks that passed: those with something to say, then the names of the others."""
    passed = [check for check in evaluation.checks if check.passed]
    quiet = ", ".join(check.name for check in passed if not check.detail)
    return [*(_told(check) for check in passed if check.detail), ("passed", quiet)]


def _told(check: Check) -> tuple[str, str]:
    fits = len(check.name) < MARGIN - 2
    return (check.name, check.detail) if fits else ("note", f"{check.name}: {check.detail}")


def _confinement(evaluation: Evaluation) -> str:
    if not evaluation.confinement:
        return ""
    missing = f"; missing: {', '.join(evaluation.confinement_missing)}" if evaluation.confinement_missing else ""
    return ", ".join(evaluation.confinement) + missing
