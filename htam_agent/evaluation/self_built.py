"""Own work of a file that builds its kernels itself (load_inline, Triton): no binary is there to take them out of.

On a GPU one call is profiled: the names of the kernels that ran, and their shares of the time. A candidate of which
only a library's kernels run is refused. Launches by its own libraries through the CUDA runtime are then left out in
another call: an output that is still right does not come from them. On a processor nothing of this can be seen.
"""

from __future__ import annotations

from htam_agent.evaluation.differing import difference
from htam_agent.evaluation.judge import Stop, Subject, Verification
from htam_agent.evaluation.kernel_names import microseconds_by_owner, named
from htam_agent.evaluation.messages import Answer, KernelTime, LaunchMode, Order, Prepare, Trial
from htam_agent.evaluation.session import Session
from htam_agent.verdict import Check

NAMES, DROPPED = "kernel-names", "own-work"
LIBRARY_SHARE = 0.5
"""Under own-kernels-only, kernels that bear a library's name may take this much of the GPU's time before the candidate
is quarantined: what torch runs was looked at already, and names are chosen by whoever writes a kernel."""


def examine_self_built(
    session: Session, subject: Subject, verification: Verification
) -> tuple[list[Check], float | None]:
    """What could be seen, and the share of own kernels of the GPU's time. Raises Stop where it runs none of its own."""
    if session.device_name == "cpu":
        detail = "not tried: the file builds its kernels itself, and a processor does not say what runs"
        return [Check(name=DROPPED, passed=True, detail=detail)], None
    answer = _call(session, subject, verification, "count")
    checks, share = _by_name(session, answer.kernels)
    checks.append(_without_own(session, subject, verification, answer))
    return checks, share


def _by_name(session: Session, kernels: list[KernelTime]) -> tuple[list[Check], float | None]:
    if not kernels:
        return [Check(name=NAMES, passed=True, detail="not tried: torch's profiler shows no kernels here")], None
    spent = microseconds_by_owner(kernels)
    computing = spent["own"] + spent["library"] + spent["unclear"]
    if not spent["own"] and not spent["unclear"]:
        ran = named(kernels, "library") or named(kernels, "copy")
        raise Stop("failed", "policy", f"it launches no kernel of its own: what runs is {ran}")
    share = spent["own"] / (computing + spent["copy"]) if computing else None
    detail = f"own {spent['own']:.4g} us ({named(kernels, 'own')}), library {spent['library']:.4g} us"
    if spent["library"]:
        detail += f" ({named(kernels, 'library')})"
    if spent["unclear"]:
        detail += f", templates of CUTLASS or CUB {spent['unclear']:.4g} us"
    if session.policy == "own-kernels-only" and spent["library"] > LIBRARY_SHARE * computing:
        raise Stop("quarantined", "policy", f"most of its time goes to a library's kernels: {detail}")
    return [Check(name=NAMES, passed=True, detail=detail)], share


def _without_own(session: Session, subject: Subject, verification: Verification, full: Answer) -> Check:
    """The call again without launches from the candidate's own libraries."""
    counts = full.launch_counts
    if not counts.known:
        return Check(name=DROPPED, passed=True, detail="not tried: launches of the CUDA runtime are not counted here")
    if not counts.own:
        return Check(name=DROPPED, passed=True, detail="not tried: its launches do not pass the CUDA runtime")
    try:
        answer = _call(session, subject, verification, "drop")
        changed = difference(session, answer)
    except Stop as stop:
        if not subject.worker.alive():
            reason = f"without the launches of its own libraries its process ends: {stop.reason}"
            raise Stop("quarantined", "policy", reason, stop.evidence) from stop
        changed = stop.reason  # honest host code that looks at what its kernels wrote
    if changed:
        return Check(name=DROPPED, passed=True, detail=f"without {counts.own} launches of its own: {changed}")
    if session.loaded.weak:
        return Check(name=DROPPED, passed=False, detail=f"undecided: {session.loaded.weak} pass this task")
    if answer.launch_counts.graphs or microseconds_by_owner(answer.kernels)["own"]:
        return Check(name=DROPPED, passed=True, detail="undecided: its kernels are launched in other ways too")
    raise Stop("failed", "policy", f"without {counts.own} launches of its own libraries the output is still right")


def _call(session: Session, subject: Subject, verification: Verification, mode: LaunchMode) -> Answer:
    session.reference.prepare(Prepare(seed=verification.draw_seed()))
    return subject.order(Order(trial=Trial(kernels=True, launch_mode=mode)), "policy")
