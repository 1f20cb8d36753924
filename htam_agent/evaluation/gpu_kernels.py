"""Own work as the GPU shows it: one call is profiled, for the names of its kernels and their shares of the time.

A file that builds its kernels itself (load_inline, Triton) has no binary to take them out of. A candidate of which only
a library's kernels run is refused; launches by its own libraries through the CUDA runtime are then left out in another
call: an output that is still right does not come from them. On a processor nothing of this can be seen.
"""

from __future__ import annotations

from collections.abc import Collection

from htam_agent.evaluation.differing import Difference, difference
from htam_agent.evaluation.judge import Stop, Subject
from htam_agent.evaluation.kernel_names import Kernels
from htam_agent.evaluation.messages import Answer, LaunchMode, Order, Prepare, Trial
from htam_agent.evaluation.session import Session
from htam_agent.evaluation.verification import Verification
from htam_agent.verdict import Check

NAMES, DROPPED = "kernel-names", "own-work"
LIBRARY_SHARE = 0.5
"""Under own-kernels-only, kernels that bear a library's name may take this much of the GPU's time before the candidate
is quarantined: what torch runs was looked at already, and names are chosen by whoever writes a kernel."""


class GpuKernels:
    """The look at one candidate, in its own process. `own`: names in its binary; none for a file that builds itself.
    `written`: names of kernels in its text."""

    def __init__(
        self,
        session: Session,
        subject: Subject,
        verification: Verification,
        own: Collection[str],
        *,
        written: Collection[str] = (),
        self_built: bool,
    ) -> None:
        self._session = session
        self._subject = subject
        self._verification = verification
        self._own = own
        self._written = written
        self._self_built = self_built

    def look(self) -> float | None:
        """The share of own kernels of the GPU's time in a call; None where the profiler shows nothing. Adds checks, and
        raises Stop where the candidate runs no kernel of its own."""
        self._session.reference.prepare(Prepare(seed=self._verification.draw_seed()))
        answer = self._trial("count" if self._self_built else "")
        share = self._by_name(answer)
        if self._self_built:
            self._verification.checks.append(self._without_own(answer))
        return share

    def _trial(self, mode: LaunchMode) -> Answer:
        return self._subject.order(Order(trial=Trial(kernels=True, launch_mode=mode)), "policy")

    def _by_name(self, answer: Answer) -> float | None:
        if not answer.kernels:
            detail = "not tried: torch's profiler shows no kernels here"
            self._verification.checks.append(Check(name=NAMES, passed=True, detail=detail))
            return None
        kernels = Kernels(answer.kernels, self._own, self._written)
        described = kernels.describe()
        own, library = kernels.microseconds("own") + kernels.microseconds("unclear"), kernels.microseconds("library")
        if not own and self._self_built:
            raise Stop("failed", "policy", f"it launches no kernel of its own: what runs is {described}")
        if not own:
            # Without its kernels the output was another one, so one of the two observations was led astray.
            raise Stop("quarantined", "policy", f"the profiler shows no kernel of its own: what runs is {described}")
        if self._session.policy == "own-kernels-only" and library > LIBRARY_SHARE * (own + library):
            raise Stop("quarantined", "policy", f"most of its time goes to a library's kernels: {described}")
        self._verification.checks.append(Check(name=NAMES, passed=True, detail=described))
        return kernels.share

    def _without_own(self, full: Answer) -> Check:
        """The call again without launches from the candidate's own libraries."""
        counts = full.launch_counts
        if not counts.known:
            return Check(
                name=DROPPED, passed=True, detail="not tried: launches of the CUDA runtime are not counted here"
            )
        if not counts.own:
            return Check(name=DROPPED, passed=True, detail="not tried: its launches do not pass the CUDA runtime")
        answers: list[Answer] = []

        def call() -> Answer:
            answers.append(self._trial("drop"))
            return answers[-1]

        try:
            found = difference(self._session, self._verification.draw_seed, call)
        except Stop as stop:
            if not self._subject.worker.alive():
                reason = f"without the launches of its own libraries its process ends: {stop.reason}"
                raise Stop("quarantined", "policy", reason, stop.evidence) from stop
            found = Difference(stop.reason)  # honest host code that looks at what its kernels wrote
        if found.what:
            return Check(name=DROPPED, passed=True, detail=f"without {counts.own} launches of its own: {found.what}")
        if found.undecided:
            return Check(name=DROPPED, passed=False, detail=f"undecided: {found.undecided}")
        if any(
            item.launch_counts.graphs or Kernels(item.kernels, (), self._written).microseconds("own")
            for item in answers
        ):
            return Check(name=DROPPED, passed=True, detail="undecided: its kernels are launched in other ways too")
        raise Stop("failed", "policy", f"without {counts.own} launches of its own libraries the output is still right")
