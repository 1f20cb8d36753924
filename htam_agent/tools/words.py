"""The records of the tools as short text for a model."""

from __future__ import annotations

from htam_agent.backends.logs import shorten
from htam_agent.evaluation.deep.counters import in_words
from htam_agent.verdict import CompileResult, ProfileResult, RunResult

EVIDENCE_CHARACTERS = 4000


def compile_words(result: CompileResult) -> str:
    """Built, with what is known of the kernels; or the compiler's first errors."""
    if not result.ok:
        log = shorten(result.log, EVIDENCE_CHARACTERS)
        return f"It does not build ({result.stage}): {result.reason or 'see the log'}" + (f"\n{log}" if log else "")
    if result.deferred:
        return "It builds itself when it is imported; run it to see."
    kernels = [
        f"{kernel.name}: {kernel.registers} registers, {kernel.spill_bytes} bytes spilled, "
        f"{kernel.static_shared_bytes} bytes of static shared memory"
        for kernel in result.kernels
        if kernel.registers is not None
    ]
    return "\n".join([f"Built in {result.seconds:.2f} s{' (cached)' if result.cached else ''}.", *kernels])


def run_words(result: RunResult) -> str:
    """The verdict with its reason and failed checks, or with the times."""
    if result.verdict != "correct":
        failed = [f"- {check.name}: {check.detail}" for check in result.checks if not check.passed]
        text = "\n".join([f"{result.verdict} at stage {result.stage}: {result.reason}", *failed])
        return shorten(text, EVIDENCE_CHARACTERS)
    times = result.times_ms
    parts = [f"{name} {value:.4g} ms" for name, value in times if value is not None]
    best = result.speedup.best
    ratio = (
        f"{best:.3g}x the best baseline" if best is not None else f"no speedup ({result.speedup.reason or 'not timed'})"
    )
    interval = f", interval {result.interval.low:.3g} to {result.interval.high:.3g}" if result.interval else ""
    return f"correct; {ratio}{interval}; {'faster' if result.faster else 'not shown to be faster'}; " + ", ".join(parts)


def profile_words(result: ProfileResult) -> str:
    """The diagnosis with the figures behind it."""
    if result.floor_ms <= 0:
        return result.diagnosis
    figures = [
        f"{result.fraction_of_floor:.0%} of the floor ({result.floor_ms:.4g} ms)",
        f"{result.achieved_bytes_per_second / 1e9:.4g} GB/s",
        f"{result.achieved_operations_per_second / 1e9:.4g} GFLOP/s",
    ]
    if result.tensor_share is not None:
        figures.append(f"{result.tensor_share:.0%} of the rate of matrix products")
    if result.fractions.best is not None:
        figures.append(f"the reference reaches {result.fractions.best:.0%} of the floor")
    if result.occupancy is not None:
        figures.append(f"occupancy {result.occupancy:.0%} (limited by {result.limited_by})")
    counted = f"\nCounters: {in_words(result.counters)}" if result.counters else ""
    return f"{result.bottleneck}: {result.diagnosis}\n" + ", ".join(figures) + counted
