"""The opponents' times: the reference under PyTorch's defaults, with TF32, and compiled."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from htam_agent.evaluation.cover import flushes_for_short
from htam_agent.evaluation.messages import Ask, Block, Prepare, Variant, Warm
from htam_agent.evaluation.timing import calls_for, device_lock
from htam_agent.verdict import Ceilings, Times

if TYPE_CHECKING:
    from htam_agent.evaluation.session import Session

COMPILE_SECONDS = 600.0
"""torch.compile of a reference may take this long; afterwards the worker counts as dead."""
BLOCKS = 3
VARIANTS: tuple[Variant, ...] = ("eager", "eager_tf32", "compile")


def measure_baselines(session: Session, ceilings: Ceilings, with_compile: bool) -> tuple[Times, str]:
    """Median milliseconds of each opponent, and why one is null.

    `best` is the fastest of all that were measured: each runs at the chosen precision, or (eager under tf32) at a
    higher one, which any user may choose.
    """
    from htam_agent.tools.diagnose import floor_ms

    found: dict[Variant, float] = {}
    reasons = []
    with device_lock(session.lock):
        session.reference.prepare(Prepare(seed=session.seeds.draw()))
        for slot in range(1, session.loaded.blueprint.slots):
            session.reference.prepare(Prepare(seed=session.seeds.draw(), redraw=False, slot=slot, expect=False))
        for variant in VARIANTS:
            reason = _not_wanted(session, variant, with_compile)
            if not reason:
                times, reason = _measure(session, variant)
                if times:
                    found[variant] = statistics.median(times)
            if reason:
                reasons.append(f"{variant}: {reason}")
    times_ms = Times(
        eager=found.get("eager"),
        eager_tf32=found.get("eager_tf32"),
        compile=found.get("compile"),
        best=min(found.values()),
        floor=floor_ms(session.loaded.operator, ceilings, session.backend.name, session.precision),
    )
    return times_ms, "; ".join(reasons)


def ranked_variants(times: Times) -> list[Variant]:
    """The opponents that were measured, the fastest first; eager alone where none was."""
    known: dict[Variant, float] = {name: time for name in VARIANTS if (time := getattr(times, name)) is not None}
    return sorted(known, key=known.__getitem__) or ["eager"]


def missing_reason(times: Times) -> str:
    """For times from an earlier run: which opponents they lack."""
    missing = [name for name in VARIANTS if getattr(times, name) is None]
    return f"not measured: {', '.join(missing)}" if missing else ""


def _not_wanted(session: Session, variant: Variant, with_compile: bool) -> str:
    if variant == "eager_tf32" and session.backend.name == "cpp":
        return "TF32 exists on CUDA only"
    if variant == "eager_tf32" and session.precision != "tf32":
        return f"the precision is {session.precision}"
    return "not asked for" if variant == "compile" and not with_compile else ""


def _measure(session: Session, variant: Variant) -> tuple[list[float], str]:
    seconds = COMPILE_SECONDS if variant == "compile" else None
    warm = session.reference.ask(Ask(warm=Warm(variant=variant, seconds=0.1)), seconds).timed
    assert warm is not None, "a warm is answered by times"
    if not warm.milliseconds:
        return [], warm.reason
    slots = session.loaded.blueprint.slots
    calls = max(3, calls_for(warm.milliseconds[0], session.device_name))
    flushes = 0 if session.warm_l2 else flushes_for_short(warm.milliseconds[0])
    times: list[float] = []
    for _ in range(BLOCKS):
        order = Block(variant=variant, calls=calls, slots=slots, flushes=flushes)
        block = session.reference.ask(Ask(block=order)).timed
        assert block is not None, "a block is answered by times"
        if not block.milliseconds:
            return [], block.reason or "it gave no times"
        times += block.milliseconds
    return times, ""
