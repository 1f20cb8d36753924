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
        ("ms of a call", _times(evaluation)),
        ("own work", _work(evaluation)),
        ("GPU clock", _gpu(evaluation)),
        ("counters", _deep(evaluation)),
        *_notes(evaluation),
        ("confinement", _confinement(evaluation)),
        ("not done" if evaluation.verdict == "correct" else "not timed", evaluation.speedup.reason),
    ]
    return [_headline(evaluation), *(line for name, text in rows if text for line in _row(name, text))]


def _headline(evaluation: Evaluation) -> str:
    best = evaluation.speedup.best
    faster = "faster" if evaluation.faster else "not faster"
    speed = f", {faster}: {best:.3f}x over best{_between(evaluation.interval)}" if best is not None else ""
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
    return ", ".join(known)


def _times(evaluation: Evaluation) -> str:
    """Milliseconds of a call on both sides by each clock, and what of the floor they reach."""
    sides = {"device": evaluation.device_ms, "call": evaluation.call_ms, "graph replay": evaluation.graph_ms}
    lines = [
        f"{name:<{MARGIN}}{ms.candidate:<12.4g}{ms.reference:<12.4g}" for name, ms in sides.items() if ms is not None
    ]
    times, reached = evaluation.times_ms, evaluation.fractions
    if times.floor and times.candidate is not None:
        lines.append(f"{'floor':<{MARGIN}}{times.floor:<12.4g}{times.floor:<12.4g}")
    shares = [f"{share:.0%}" if share is not None else "" for share in (reached.candidate, reached.best)]
    if any(shares):
        lines.append(f"{'of it reached':<{MARGIN}}{shares[0]:<12}{shares[1]:<12}")
    head = f"{'':<{MARGIN}}{'candidate':<12}{'best':<12}"
    return "\n".join(line.rstrip() for line in (head, *lines)) if lines else ""


def _work(evaluation: Evaluation) -> str:
    """Whose work a call is, and whether its launches or the device decide how long it takes."""
    share = evaluation.own_share
    told = [f"{share:.0%} of a call's time is its own kernels'"] if share is not None else []
    told += ["launch-bound: the host decides how long a call takes"] if evaluation.launch_bound else []
    return "; ".join(told)


def _gpu(evaluation: Evaluation) -> str:
    """The clocks round the timed calls, and what throttled them."""
    states = [state for state in (evaluation.gpu_before, evaluation.gpu_after) if state is not None]
    clocks = [f"{state.sm_clock_mhz} MHz" for state in states if state.sm_clock_mhz is not None]
    return f"{' before, '.join(clocks)} after the timed calls" if len(clocks) == 2 else ""


def _deep(evaluation: Evaluation) -> str:
    """What the counters measured, a line for each kernel."""
    lines = []
    for kernel in evaluation.counters:
        figures = {
            "DRAM": kernel.dram_percent, "multiprocessors": kernel.multiprocessor_percent,
            "occupancy": kernel.occupancy_percent, "L2 hits": kernel.l2_hit_percent,
        }  # fmt: skip
        known = ", ".join(f"{name} {value:.0f} %" for name, value in figures.items() if value is not None)
        lines.append(f"{kernel.kernel}: {known}")
    return "\n".join(lines)


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
