"""What the float64 rule found over one evaluation, in one check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from htam_agent.verdict import Check

if TYPE_CHECKING:
    from htam_agent.evaluation.messages import Judged, Loaded, Measured

BUDGET_SECONDS = 0.3
"""For all float64 calls of an evaluation."""
LEAST_TRIALS = 2
TIMED_SECONDS, MOST_TIMED = 0.1, 3
"""For the float64 calls of timed outputs, and how many outputs are compared with them at most."""


class AccuracyReport:
    """Collects the measured errors of a candidate's trials. `loaded` says whether and how fast float64 runs."""

    def __init__(self, loaded: Loaded) -> None:
        self._applies = loaded.float64_applies
        self._reason = loaded.float64_reason
        self._seconds = loaded.float64_seconds
        self._measured: list[Measured] = []
        self._trials = 0
        self._all = 0
        self._rescued: list[str] = []

    def affordable(self) -> int:
        """Trials that the budget allows to be compared with float64, two at least."""
        if not self._seconds or self._reason:
            return 1000
        return max(LEAST_TRIALS, int(BUDGET_SECONDS / self._seconds))

    def affordable_timed(self) -> int:
        """Outputs of timed calls that the budget allows to be compared with float64; none where it cannot be used."""
        if not self._applies or self._reason:
            return 0
        return min(MOST_TIMED, int(TIMED_SECONDS / max(self._seconds, 1e-3)))

    def add(self, judged: Judged, label: str = "") -> None:
        """Takes in what was measured in one trial."""
        self._all += bool(label)
        self._trials += bool(label and judged.measured)
        self._measured += judged.measured
        self._reason = judged.float64_reason or self._reason
        if judged.rescued:
            self._rescued.append(f"{label}: {judged.rescued}")

    def check(self) -> Check:
        """The check "float64": against what errors were judged, in how many trials, and how large they were."""
        if not self._applies:
            return Check(name="float64", passed=True, detail="not used: no output that it could tell more about")
        parts = []
        if self._reason:
            parts.append(
                f"float64 cannot be used ({self._reason}): judged against float32 without TF32, with wider floors"
            )
        parts.append(f"errors measured in {self._trials} of {self._all} trials")
        if self._measured:
            worst = max(self._measured, key=lambda one: one.errors.excess(one.dtype, single=one.single))
            parts.append(worst.errors.describe(worst.dtype, worst.single))
        parts += self._rescued[:3]
        passed = all(one.errors.excess(one.dtype, single=one.single) <= 1.0 for one in self._measured)
        return Check(name="float64", passed=passed or bool(self._rescued), detail="; ".join(parts))
