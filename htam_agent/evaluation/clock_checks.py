"""The checks that a timing leaves in a result: what was compared, and what proves the times."""

from __future__ import annotations

from htam_agent.evaluation.activity import not_watched
from htam_agent.evaluation.messages import Loaded
from htam_agent.evaluation.rounds import Rounds
from htam_agent.evaluation.slots import MOST_SLOTS
from htam_agent.verdict import Check


def clock_checks(
    rounds: Rounds, loaded: Loaded, not_native: str, *, cold: bool, alone: bool
) -> tuple[list[Check], str]:
    """The checks "timed-outputs" and "clock", and why the times cannot be believed (empty: they can).

    `not_native`: why the candidate's stopwatch is not the native one, as its process said before the file was there.
    """
    distrust = rounds.distrust
    proof = rounds.proof
    said = [distrust or (proof.describe() if proof is not None else ""), rounds.fresh_taken]
    if rounds.kind == "cuda" and not cold:
        said.append("data stay in the L2 from call to call, as was asked for")
    elif rounds.kind == "cuda":
        said.append(f"{rounds.flushes} flushes of the L2 before each call")
    if rounds.host_bound and cold:
        said.append("no number of flushes hides the host, which launches calls more slowly than the device does them")
    for side, why in (("reference", loaded.clock), ("candidate", not_native)):
        if why:
            said.append(f"the native stopwatch is not used for the {side}: {why}")
    unequal = bool(loaded.clock) != bool(not_native)
    if unequal:
        said.append("both sides are not timed by the same loop, which shows in calls of a few microseconds")
    if not_watched():
        said.append(f"what its processes do beside its calls is not watched: {not_watched()}")
    if rounds.slots == 1 and not alone:
        said.append("with one set of inputs, results kept from call to call within a round do not show")
    checks = [
        Check(name="timed-outputs", passed=True, detail=_compared(rounds, loaded, alone)),
        Check(name="clock", passed=not (distrust or unequal), detail="; ".join(filter(None, said))),
    ]
    return checks, distrust


def _compared(rounds: Rounds, loaded: Loaded, alone: bool) -> str:
    """Which outputs of timed calls were compared, and how."""
    parts = [f"other values in every round on {_sets(rounds.slots)}, {rounds.compared} outputs compared"]
    if alone:
        parts[0] += (
            " (each of one to four more calls in a row from inputs and state as they were, which are compared too)"
        )
    elif loaded.blueprint.slots < MOST_SLOTS:
        parts.append(f"memory does not suffice for {MOST_SLOTS} sets")
    if rounds.exact:
        parts.append(f"{rounds.exact} of them against float64 too")
    elif loaded.float64_applies:
        why = loaded.float64_reason or f"a call of it takes {loaded.float64_seconds:.2g} s"
        parts.append(f"none of them against float64 ({why})")
    if rounds.skipped:
        parts.append(f"{rounds.skipped} not compared: the reference is not finite there")
    return "; ".join(parts)


def _sets(slots: int) -> str:
    return "one set of inputs" if slots == 1 else f"{slots} sets of inputs in turn"
