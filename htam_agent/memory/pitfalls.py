"""Learned pitfalls: causes of failure that recur with a strategy, read off the experiences.

They are derived each time and stored nowhere: whatever enters, leaves or is merged into the memory, they follow from
what was measured. Only words of our own are in them, no text of a kernel's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from htam_agent.failures import FailureCause
from htam_agent.memory.model import Experience

RECURS = 2
"""Steps of which the same cause must be known: one may be a slip."""
SHOWN = 3

WORDS: dict[FailureCause, str] = {
    "syntax": "does not compile",
    "symbol": "uses names or headers that do not exist there",
    "launch": "cannot be launched so (grid, block, shared memory, registers, arguments)",
    "crash": "accesses memory out of bounds or dies",
    "timeout": "does not end in time",
    "race-like": "gives other results from call to call (a race, or memory that is not written)",
    "precision": "is less accurate than allowed",
    "boundary": "is wrong at the ends of a dimension (tails, last blocks, elements that are not written)",
    "layout": "puts right values at wrong places",
    "special-values": "goes wrong with NaN or infinities",
    "values": "computes other values (formula, constants)",
    "form": "returns another shape, dtype or structure",
    "state": "changes its inputs or keeps something between calls",
}
"""Causes that say something of the kernel. Refusals by policy and figures that were not believed do not."""


def learned_pitfalls(experiences: Iterable[Experience], strategy: str) -> list[str]:
    """What went wrong at least RECURS times with this strategy, most frequent first, at most SHOWN.

    Several attempts of one step with the same cause count once: a repair often fails like what it repairs.
    """
    known = [one for one in experiences if one.strategy == strategy]
    steps = {(one.run, one.step, one.candidate) for one in known}
    failed = {
        (one.run, one.step, one.candidate, one.cause)
        for one in known
        if one.verdict in ("wrong", "failed") and one.cause in WORDS
    }
    causes = Counter(cause for *_, cause in failed)
    recurring = sorted((-count, cause) for cause, count in causes.items() if count >= RECURS)
    return [f"learned: {WORDS[cause]} in {-count} of {len(steps)} tries" for count, cause in recurring[:SHOWN]]
