"""What a candidate's output owes to its own kernels: the same file, with kernels that do nothing, in a second process.

An output that is still right was not computed by them: the candidate is refused, under both policies. A variant that
fails, hangs or is wrong has changed. How much faster it is than the candidate is the share of time in own kernels, on a
processor; a GPU's profiler tells that share by the kernels' names.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from htam_agent.evaluation.auditing import builds_itself, loads, looked_up
from htam_agent.evaluation.differing import Difference, difference
from htam_agent.evaluation.entering import Entered, occupy
from htam_agent.evaluation.files import open_plain, read_plain
from htam_agent.evaluation.foreign_calls import foreign_functions, foreign_symbols
from htam_agent.evaluation.gpu_kernels import GpuKernels
from htam_agent.evaluation.judge import Stop, Subject
from htam_agent.evaluation.kernel_names import written_names
from htam_agent.evaluation.messages import Answer, Measure, Order, Regime, Trial
from htam_agent.evaluation.noop import NotEmptied, asked_for, empty_cubin, empty_library
from htam_agent.evaluation.plans import regime_of
from htam_agent.evaluation.session import Session
from htam_agent.evaluation.spares import CANDIDATE_FILE
from htam_agent.evaluation.timing import device_lock
from htam_agent.evaluation.verification import Verification
from htam_agent.verdict import Check, CompileResult

NAME, SHARE = "own-work", "own-share"
NOOP_SECONDS = 10.0
"""A variant that takes longer waits for what its kernels no longer write, or the machine is busy: undecided."""
LEAST_SHARE = 0.05
"""Under own-kernels-only torch may still copy, and a copy of the inputs takes as long as a kernel that reads them once:
an honest share is a third or more. A twentieth is left to who has other work done elsewhere."""
LEAST_MS = 0.5
"""What a call takes without its kernels may be Python alone, up to this; no share is judged below."""
ATTEMPTS = 3
PROBING_MS, LONGEST_BLOCK = 20.0, 16


class OwnWork:
    """The look at one candidate. Findings become checks of the verification.

    `share` of a call's time in own kernels: of the GPU's, or on a processor of the clock's; None where it was not
    measured.
    """

    def __init__(self, session: Session, compiled: CompileResult, entered: Entered, verification: Verification) -> None:
        self._session = session
        self._compiled = compiled
        self._full = entered.subject
        self._verification = verification
        self._names: list[str] = []
        self._self_built = compiled.deferred
        self.share: float | None = None

    def without_kernels(self, *, timing: bool) -> None:
        """Runs the variant once on fresh inputs; on a processor, with `timing`, compares its time to the candidate's.

        Raises Stop where the candidate's own kernels have no part in its output, or hardly one in its time, and
        WorkerError when the harness fails.
        """
        if self._compiled.deferred:
            return
        try:
            binary, self._names = self._emptied()
        except NotEmptied as error:
            self._note(NAME, True, f"not tried: {error}")
            return
        with tempfile.TemporaryDirectory(dir=self._session.folder, prefix="noop-") as folder:
            variant = Path(folder) / Path(self._compiled.binary).name
            variant.write_bytes(binary)
            second = occupy(self._session, self._compiled, kernels=variant.parent)
            try:
                self._examine(second, variant.name, timing)
            finally:
                second.leave()

    def afterwards(self, *, timed: bool) -> None:
        """Looks at what runs on the GPU, and after many timed calls once more at the operators. After the timing: the
        profiler is not to be in a process that is timed."""
        if timed:
            # A candidate that turns to torch after some calls does so now, if not before.
            self._verification.check_operators(self._full.order(Order(trial=Trial(record=True)), "policy"))
        if self._session.device_name == "cpu":
            if self._self_built:
                what = "the file builds its kernels itself, and a processor does not say what runs"
                self._note(NAME, True, f"not tried: {what}")
            return
        look = GpuKernels(
            self._session,
            self._full,
            self._verification,
            frozenset(self._names),
            written=self._written(),
            self_built=self._self_built,
        )
        self.share = look.look()

    def _written(self) -> frozenset[str]:
        try:
            text = read_plain(Path(self._compiled.folder) / CANDIDATE_FILE).decode("utf-8", "replace")
        except OSError:
            return frozenset()  # taken away by the candidate: then names alone speak
        return written_names(text)

    def _note(self, name: str, passed: bool, detail: str) -> None:
        self._verification.checks.append(Check(name=name, passed=passed, detail=detail))

    def _emptied(self) -> tuple[bytes, list[str]]:
        try:
            with open(open_plain(Path(self._compiled.binary), os.O_RDONLY), "rb") as file:
                binary = file.read()
        except OSError as error:
            raise NotEmptied(f"the binary cannot be read: {error}") from error
        if self._session.backend.name == "cuda":
            return empty_cubin(binary, self._session.backend.target())
        self._refuse_foreign(foreign_symbols(asked_for(binary)))
        return empty_library(binary)

    def _refuse_foreign(self, names: list[str]) -> None:
        if names and self._session.policy == "own-kernels-only":
            what = f"it calls {', '.join(names[:6])}"
            raise Stop(
                "failed", "policy", f"{what}, which the policy own-kernels-only does not leave to other libraries"
            )

    def _examine(self, second: Entered, name: str, timing: bool) -> None:
        found, seen = self._try(second)
        self._refuse_foreign(foreign_functions(looked_up(seen), self._names))
        which = f"all its {len(self._names)} kernels" if len(self._names) > 1 else f"its kernel {self._names[0]}"
        if not found.what:
            self._unchanged(found, seen, second, (name, which))
            return
        if found.what.startswith(("out of memory", "hang:")):
            self._note(NAME, True, f"undecided: without {which} {found.what}")
            return
        self._note(NAME, True, f"without {which}: {found.what}")
        if timing and self._session.device_name == "cpu":
            self._measure_share(second.subject)

    def _try(self, second: Entered) -> tuple[Difference, list[str]]:
        """What is different without the kernels, and what the file loaded."""

        def call() -> Answer:
            return second.subject.order(Order(trial=Trial()), "policy", NOOP_SECONDS)

        try:
            second.subject.order(Order(audit=True), "policy", NOOP_SECONDS)
            second.start()
            found = difference(self._session, self._verification.draw_seed, call)
        except Stop as stop:
            found = Difference(stop.reason)
        try:
            return found, second.subject.order(Order(audit=True), "policy", NOOP_SECONDS).loaded
        except Stop:  # its process has ended
            return found, []

    def _unchanged(self, found: Difference, seen: list[str], second: Entered, names: tuple[str, str]) -> None:
        """The output is still right. Raises Stop unless that proves nothing, or the kernels that ran were others."""
        name, which = names
        if found.undecided:
            self._note(NAME, False, f"undecided: {found.undecided}")
        elif loads(seen, name):
            raise Stop("failed", "policy", f"with {which} replaced by nothing the output is still right")
        elif builds_itself(seen, second.spare.scratch, device=self._session.device_name):
            self._self_built = True
        elif any(words.startswith(("run ", "import ")) for words in seen):
            raise Stop("quarantined", "policy", "its kernels are built and never loaded, nor any that it built itself")
        else:
            raise Stop("failed", "policy", "its kernels are built and never loaded: it runs none of its own")

    def _measure_share(self, second: Subject) -> None:
        """The share of a call's time that its own kernels take; a low one is measured again, since what else runs on a
        processor can make either side look slow."""
        self._session.quiet()
        with device_lock(self._session.lock) as waited:
            self._full.extend(waited)
            second.extend(waited)
            regime = regime_of(self._session.protocol)
            for _ in range(ATTEMPTS):
                try:
                    without = _milliseconds(second, regime)
                except Stop as stop:
                    self._note(SHARE, True, f"not measured: without its kernels {stop.reason}")
                    return
                full = _milliseconds(self._full, regime)
                share = max(0.0, 1.0 - without / full)
                if share >= LEAST_SHARE or without <= LEAST_MS:
                    break
        detail = f"{share:.3g} of a call: {full:.4g} ms, {without:.4g} ms without its kernels"
        low = share < LEAST_SHARE and without > LEAST_MS and self._session.policy == "own-kernels-only"
        self._note(SHARE, not low, detail)
        if low:
            raise Stop("quarantined", "policy", f"its own kernels take {detail}: other work fills its time")
        self.share = share


HIDING_FLUSHES = 4
"""Of the L2, on CUDA: the device is busy with them until the host has launched a call, whose time is the device's."""


def _milliseconds(subject: Subject, regime: Regime) -> float:
    """Median milliseconds of a few calls, on each side measured alike."""
    first = statistics.median(_block(subject, 2, regime))
    if first > PROBING_MS:
        return first
    return statistics.median(_block(subject, max(3, min(LONGEST_BLOCK, int(PROBING_MS / max(first, 1e-3)))), regime))


def _block(subject: Subject, calls: int, regime: Regime) -> list[float]:
    measure = Measure(calls=calls, flushes=HIDING_FLUSHES, regime=regime)
    milliseconds = subject.order(Order(measure=measure), "policy").milliseconds
    if not milliseconds or not min(milliseconds) > 0.0:
        raise Stop("quarantined", "policy", "the candidate's process gave times that cannot be")
    return milliseconds
