"""A second look at a profile with what the kernel's plan is known to move."""

from __future__ import annotations

from htam_agent.operator import OperatorProfile
from htam_agent.verdict import Ceilings, ProfileResult

MEMORY_SHARE = 0.60
"""As in diagnose.py: from this share of the copy rate on, memory is what bounds a kernel."""


def with_traffic(
    profile: ProfileResult, moved: int, operator: OperatorProfile, ceilings: Ceilings, milliseconds: float
) -> ProfileResult:
    """The profile with the bottleneck `memory` where the bytes that the plan moves, rather than the unavoidable ones,
    reach the copy rate; the words then say how many bytes could be saved. Otherwise the profile as it is."""
    if profile.bottleneck != "latency" or milliseconds <= 0 or moved <= operator.unavoidable_bytes:
        return profile
    share = moved / (milliseconds / 1e3) / ceilings.copy_rate(moved)
    if share < MEMORY_SHARE:
        return profile
    times = moved / operator.unavoidable_bytes
    words = (
        f"Bound by memory: it moves {moved:,} bytes, {times:.2f} times the unavoidable ones, at {share:.0%} of the "
        "copy rate. Fewer passes, or rows that wait on the chip between passes, make it faster."
    )
    return profile.model_copy(update={"bottleneck": "memory", "diagnosis": words})
