"""What one deep check found."""

from __future__ import annotations

from htam_agent.verdict import Check
from htam_agent.words import Record, Verdict


class Found(Record):
    """A check, and what it makes of a verdict that was `correct` (None: it stays)."""

    check: Check
    verdict: Verdict | None = None


def right(name: str, detail: str) -> Found:
    """It passed."""
    return Found(check=Check(name=name, passed=True, detail=detail))


def not_done(name: str, why: str) -> Found:
    """It could not be made here: that is no fact about a kernel."""
    return Found(check=Check(name=name, passed=True, detail=f"not done: {why}"))


def fault(name: str, verdict: Verdict, detail: str) -> Found:
    """It failed."""
    return Found(check=Check(name=name, passed=False, detail=detail), verdict=verdict)
