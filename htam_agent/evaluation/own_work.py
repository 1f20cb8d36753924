"""What a candidate's output owes to its own kernels: the same file, with kernels that do nothing, in a second process.

An output that is still right was not computed by them: the candidate is refused, under both policies. A variant that
fails, hangs or is wrong has changed. How much faster it is than the candidate is the share of time in own kernels.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from htam_agent.evaluation.auditing import builds_itself, loads, looked_up
from htam_agent.evaluation.differing import difference
from htam_agent.evaluation.entering import Entered, occupy
from htam_agent.evaluation.files import open_plain
from htam_agent.evaluation.foreign_calls import foreign_functions, foreign_symbols
from htam_agent.evaluation.judge import Stop, Subject, Verification
from htam_agent.evaluation.messages import Measure, Order, Prepare, Trial
from htam_agent.evaluation.noop import NotEmptied, asked_for, empty_cubin, empty_library
from htam_agent.evaluation.self_built import examine_self_built
from htam_agent.evaluation.session import Session
from htam_agent.evaluation.timing import device_lock
from htam_agent.verdict import Check, CompileResult

NAME, SHARE = "own-work", "own-share"
NOOP_SECONDS = 10.0
"""A variant that takes longer hangs on what its kernels no longer write: its output has changed."""
LEAST_SHARE = 0.05
"""Under own-kernels-only torch may still copy, and a copy of the inputs takes as long as a kernel that reads them once:
an honest share is a third or more. A twentieth is left to who has other work done elsewhere."""
LEAST_MS = {"cpu": 0.5, "cuda": 0.05}
"""What a call takes without its kernels may be Python and launches alone, up to this; no share is judged below."""
PROBING_MS, LONGEST_BLOCK = 20.0, 16


@dataclass
class OwnWork:
    """What was found. `share`: of a call's time, in own kernels; None where it was not measured."""

    checks: list[Check]
    share: float | None = None


def examine_own_work(
    session: Session, compiled: CompileResult, entered: Entered, verification: Verification, *, timing: bool
) -> OwnWork:
    """Runs the variant once on fresh inputs and, with `timing`, compares its time to the candidate's. A file that
    builds its kernels itself is looked at while it runs (self_built.py).

    Raises Stop where the candidate's own kernels have no part in its output, or hardly one in its time, and
    WorkerError when the harness fails.
    """
    if compiled.deferred:
        return OwnWork(*examine_self_built(session, entered.subject, verification))
    try:
        binary, names = _emptied(session, compiled)
    except NotEmptied as error:
        return OwnWork([Check(name=NAME, passed=True, detail=f"not tried: {error}")])
    with tempfile.TemporaryDirectory(dir=session.folder, prefix="noop-") as folder:
        variant = Path(folder) / Path(compiled.binary).name
        variant.write_bytes(binary)
        return _Examination(session, compiled, entered, verification, names).run(variant, timing)


def _emptied(session: Session, compiled: CompileResult) -> tuple[bytes, list[str]]:
    try:
        with open(open_plain(Path(compiled.binary), os.O_RDONLY), "rb") as file:
            binary = file.read()
    except OSError as error:
        raise NotEmptied(f"the binary cannot be read: {error}") from error
    if session.backend.name == "cuda":
        return empty_cubin(binary, session.backend.target())
    foreign = foreign_symbols(asked_for(binary)) if session.policy == "own-kernels-only" else []
    if foreign:
        raise Stop("failed", "policy", _calls(foreign))
    return empty_library(binary)


def _calls(foreign: list[str]) -> str:
    return f"it calls {', '.join(foreign[:6])}, which the policy own-kernels-only does not leave to other libraries"


class _Examination:
    def __init__(
        self,
        session: Session,
        compiled: CompileResult,
        entered: Entered,
        verification: Verification,
        names: list[str],
    ) -> None:
        self._session = session
        self._compiled = compiled
        self._full = entered.subject
        self._verification = verification
        self._names = names

    def run(self, variant: Path, timing: bool) -> OwnWork:
        second = occupy(self._session, self._compiled, kernels=variant.parent)
        try:
            return self._examine(second, variant.name, timing)
        finally:
            second.leave()

    def _examine(self, second: Entered, name: str, timing: bool) -> OwnWork:
        changed, seen = self._try(second)
        foreign = foreign_functions(looked_up(seen), self._names)
        if foreign and self._session.policy == "own-kernels-only":
            raise Stop("failed", "policy", _calls(foreign))
        which = f"its {len(self._names)} kernels" if len(self._names) > 1 else f"its kernel {self._names[0]}"
        if not changed:
            return self._unchanged(seen, name, which)
        check = Check(name=NAME, passed=True, detail=f"without {which}: {changed}")
        share = self._share(second.subject) if timing else None
        return OwnWork([check], share)

    def _try(self, second: Entered) -> tuple[str, list[str]]:
        """What is different without the kernels, empty when nothing is, and what the file loaded."""
        try:
            second.subject.order(Order(audit=True), "policy", NOOP_SECONDS)
            second.start()
            self._session.reference.prepare(Prepare(seed=self._verification.draw_seed()))
            answer = second.subject.order(Order(trial=Trial()), "policy", NOOP_SECONDS)
            changed = difference(self._session, answer)
        except Stop as stop:
            changed = stop.reason
        try:
            return changed, second.subject.order(Order(audit=True), "policy", NOOP_SECONDS).loaded
        except Stop:  # its process has ended
            return changed, []

    def _unchanged(self, seen: list[str], name: str, which: str) -> OwnWork:
        """The output is still right. Raises Stop unless the task is weak or the kernels that ran were others."""
        weak = self._session.loaded.weak
        if weak:
            detail = f"undecided: a kernel that returns {weak} passes this task"
            return OwnWork([Check(name=NAME, passed=False, detail=detail)])
        if loads(seen, name):
            raise Stop("failed", "policy", f"with {which} replaced by nothing the output is still right")
        if not builds_itself(seen):
            raise Stop("failed", "policy", "its kernels are built and never loaded: it runs none of its own")
        return OwnWork(*examine_self_built(self._session, self._full, self._verification))

    def _share(self, second: Subject) -> float | None:
        """The share of a call's time that its own kernels take; None when the variant cannot be timed."""
        with device_lock(self._session.device_name) as waited:
            self._full.extend(waited)
            second.extend(waited)
            with_kernels = _milliseconds(self._full)
            try:
                without = _milliseconds(second)
            except Stop as stop:
                detail = f"not measured: without its kernels {stop.reason}"
                self._verification.checks.append(Check(name=SHARE, passed=True, detail=detail))
                return None
        share = max(0.0, 1.0 - without / with_kernels)
        detail = f"{share:.3g} of a call: {with_kernels:.4g} ms, {without:.4g} ms without its kernels"
        kind = "cpu" if self._session.device_name == "cpu" else "cuda"
        bound = self._session.policy == "own-kernels-only" and without > LEAST_MS[kind]
        passed = not (bound and share < LEAST_SHARE)
        self._verification.checks.append(Check(name=SHARE, passed=passed, detail=detail))
        if not passed:
            raise Stop("quarantined", "policy", f"its own kernels take {detail}: other work fills its time")
        return share


def _milliseconds(subject: Subject) -> float:
    """Median milliseconds of a few calls, on each side measured alike."""
    first = statistics.median(_block(subject, 2))
    if first > PROBING_MS:
        return first
    return statistics.median(_block(subject, max(3, min(LONGEST_BLOCK, int(PROBING_MS / max(first, 1e-3))))))


def _block(subject: Subject, calls: int) -> list[float]:
    milliseconds = subject.order(Order(measure=Measure(calls=calls)), "policy").milliseconds
    if not milliseconds or not min(milliseconds) > 0.0:
        raise Stop("quarantined", "policy", "the candidate's process gave times that cannot be")
    return milliseconds
