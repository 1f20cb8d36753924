"""Other shapes: the candidate gives what the reference gives, or raises."""

from __future__ import annotations

from collections.abc import Sequence

from htam_agent.evaluation.deep.confined import Run
from htam_agent.evaluation.deep.finding import Found, fault, not_done, right
from htam_agent.evaluation.deep.orders import READY, Outcome
from htam_agent.evaluation.deep.records import DeepJudge, DeepPrepared, ShapeCase
from htam_agent.evaluation.deep.workplace import Workplace
from htam_agent.evaluation.judge import Reference
from htam_agent.evaluation.messages import Ask

NAME = "other-shapes"
RUN_SECONDS = 120.0
CRASHES = 3
"""So many cases may end the process before the rest is left out."""


class ShapeRuns:
    """The cases of one candidate, each run once. `outcomes` by label: what it told, or how its process ended."""

    def __init__(
        self, place: Workplace, reference: Reference, prepared: DeepPrepared, seconds: float = RUN_SECONDS
    ) -> None:
        self._seconds = seconds
        self._place = place
        self._reference = reference
        self._prepared = prepared
        self.outcomes: dict[str, Outcome] = {}
        self.crashes: dict[str, str] = {}
        self.wrong: dict[str, str] = {}
        self.unable = ""
        """Why it does not run here at all, though it ran when it was judged."""

    def run(self) -> Found:
        """Every case; the process is started again behind one that ends it."""
        left = list(self._prepared.cases)
        while left and len(self.crashes) < CRASHES and not self.unable:
            run, outcomes, folder = self._place.run(self._prepared, left, self._seconds)
            told = {outcome.label: outcome for outcome in outcomes}
            if READY not in told:
                return not_done(NAME, f"the process for it could not be set up: {run.in_words()}; {run.output[-400:]}")
            if "" in told:
                self.unable = told[""].reason
                break
            for case in left:
                if case.label in told:
                    self._take(case, told[case.label], str(folder))
            left = self._behind(left, told, run)
        return self._found(left)

    def _take(self, case: ShapeCase, outcome: Outcome, folder: str) -> None:
        self.outcomes[case.label] = outcome
        if outcome.broken:
            self.crashes[case.label] = outcome.reason
            return
        if not outcome.ok or outcome.outputs is None:
            return
        # Its own name, in its own folder: what else the process says of a file is not followed.
        name = outcome.file if "/" not in outcome.file else ""
        judge = DeepJudge(label=case.label, file=f"{folder}/{name}", outputs=outcome.outputs, tensors=outcome.tensors)
        judged = self._reference.ask(Ask(other_outputs=judge)).other_outputs
        assert judged is not None, "a judge is answered by a judged"
        if not judged.passed:
            self.wrong[case.label] = judged.detail

    def _behind(self, left: Sequence[ShapeCase], told: dict[str, Outcome], run: Run) -> list[ShapeCase]:
        """The cases that are still to be run: those behind the one at which the process ended."""
        missing = [case for case in left if case.label not in told]
        broken = any(outcome.broken for outcome in told.values())
        if missing and not broken:
            self.crashes[missing[0].label] = run.in_words() if not run.ok else "the process ended early"
            return missing[1:]
        return missing

    def _found(self, left: Sequence[ShapeCase]) -> Found:
        given = next((case.label for case in self._prepared.cases if case.given), "")
        if not self.unable and given:
            failed = self.outcomes.get(given)
            self.unable = self.crashes.get(given, failed.reason if failed is not None and not failed.ok else "")
        if self.unable:
            return fault(NAME, "quarantined", f"it ran when it was judged, and here it does not: {self.unable}")
        if self.wrong:
            return fault(NAME, "wrong", "; ".join(f"{label}: {why}" for label, why in self.wrong.items()))
        if self.crashes:
            words = "; ".join(f"{label}: {why}" for label, why in self.crashes.items())
            return fault(NAME, "wrong", f"it neither serves nor refuses another shape, it crashes: {words}")
        raised = {label: outcome.reason for label, outcome in self.outcomes.items() if not outcome.ok}
        served = [label for label, outcome in self.outcomes.items() if outcome.ok and label != given]
        parts = [f"right for {', '.join(served)}"] if served else []
        parts += [f"specialised: it raises for {label} ({why[:120]})" for label, why in list(raised.items())[:2]]
        parts += [f"dropped: {reason}" for reason in self._prepared.dropped]
        parts += [f"not tried: {case.label}" for case in left]
        return right(NAME, "; ".join(parts) or "the task has no other shape to try")

    def for_tools(self, own: ShapeCase, most_elements: int) -> ShapeCase | None:
        """The form on which a slow tool runs: the small one, or, for a specialised kernel, the task's `own` where it
        has at most so many elements. None: there is none."""
        for case in self._prepared.cases:
            outcome = self.outcomes.get(case.label)
            if case.small and outcome is not None and outcome.ok:
                return case
        return own if not self.unable and own.elements <= most_elements else None
