"""The proof of a candidate's times: what the harness's own clock saw of whole blocks.

The inner clock runs in the candidate's process, so what it says is a claim. The outer clock is this process's: it sees
an order go out and its answer come back. Of a block of N calls it subtracts a block of N empty calls (same loop, same
flushes of the L2, nothing called) that the trusted reference process ran beside it.

Why an honest kernel always passes. Let a call keep the host for h and the device for t, and let f be what the device
needs for the flush before it; the inner clock starts when the device has ended the flush and stops when it has ended
the call. Calls are queued, never waited for. Device-bound (h < f + t): the device is never idle, a call takes f + t of
wall time, an empty one f, the difference is t, and the inner clock reads t. Host-bound (h >= f + t): a call takes h of
wall time, an empty one at least f, the difference is at most h - f, and the inner clock reads at least h - f, since
the call's end reaches the device no earlier than h after its flush was queued. The number of flushes is chosen so that
blocks are device-bound (cover.py), whatever the length of the call: both clocks then read t. On a processor there is
no flush: the difference is the call and the loop's own few nanoseconds. So (wall - empty) / N <= inner + a constant,
whatever the kernel; what disturbs a machine may lengthen the wall time of single blocks and shortens none, hence the
best of several blocks is compared. A claim below the true time misses the bound by as much as it lies.

A host so slow that no number of flushes hides it (host-bound) holds calls up unevenly: the median of the inner times
may then lie below their mean, and the clocks part for an honest kernel too. The outer clock's time is then taken for
the candidate's, so that a lie gains nothing and nobody is accused; half as much again is the most.

On a processor that others use too, a call may be held up in the middle, which the median of the inner times does not
show. The kernel of the operating system counts for how long a thread was ready and others had the processor (schedstat,
read by this process); that long a block may take more, as far as the reference's own blocks beside it waited too
(half as much again, and a twentieth): a candidate cannot excuse itself by a load that only it has. What remains of the
reference's own two clocks is the `strain` of the machine, and is allowed for too. On a machine whose load holds the
reference up as well (a fifteenth of its time, or a tenth more than its own clock says) the outer time is taken where
the clocks part: teams of threads that wait for each other suffer more than the reference may. And where only the strain
lets a claim stand, the outer time is taken as well: the load excuses a difference, it does not make the claim true. A
lie gains nothing then.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

BAND = {"cpu": 0.08, "cuda": 0.05}
"""Part of a claimed time by which the outer clock may be above it."""
CONSTANT_MS = {"cpu": 0.004, "cuda": 0.004}
"""Milliseconds a call, besides: a Python call, two events on the device."""
SHORT_BAND = 0.10
"""Part by which calls of short blocks may be below those of long ones: clocks fall under a load that lasts."""
LONE_WAIT, MORE_WAIT = 0.05, 1.5
"""Part of a block that may have been waited for a processor, and how much more than the reference's part."""
LEAST_MS = {"cpu": 100.0, "cuda": 100.0}
"""A block that proves something takes this long."""
BLOCKS, MORE_BLOCKS = {"cpu": 3, "cuda": 2}, 2
"""Long blocks of an evaluation; so many more before a claim counts as refuted."""
BUSY_WAIT, BUSY_STRAIN, BUSY_TIMES = 0.15, 1.1, 100.0
"""A processor that is busy with others' work, and how many times a claim its outer clock may see and is taken."""
GAP_MS = 0.012
"""A call that itself waits for the device leaves it idle until the next flush has been launched: a gap of this order is
no lie, and the outer clock's time is taken then."""
HOST_BAND, HOST_CONSTANT_MS = 0.5, 0.015
"""Where no cover hides the host: by how much the outer clock may be above a claim, and is taken then."""


@dataclass(frozen=True)
class Block:
    """One block on both clocks, in milliseconds: `inner_ms` the claimed median of a call, `wall_ms` from the order to
    the answer by the harness's clock, `empty_ms` the same of as many empty calls in the reference's process."""

    inner_ms: float
    wall_ms: float
    empty_ms: float
    calls: int
    first_ms: float = 0.0
    """A CPU block's first call, which is not among the calls: it may be slower than they are, up to four times and
    1 ms."""

    waited_ms: float = 0.0
    """Of the wall time: for which a thread was ready and others had the processor."""

    def outer_ms(self, excused: float = 1.0) -> float:
        """Milliseconds of a call by the harness's clock; `excused`: the part of the wall time that may have been
        waited for a processor."""
        first = min(self.first_ms, 4.0 * self.inner_ms + 1.0)
        waited = min(self.waited_ms, excused * self.wall_ms)
        return max(0.0, self.wall_ms - waited - self.empty_ms - first) / self.calls

    @property
    def parts(self) -> bool:
        """Whether the clocks of a CUDA block part: a lie, or a host that its cover does not hide."""
        return self.outer_ms() > _allowed(self.inner_ms, 1.0, BAND["cuda"], CONSTANT_MS["cuda"])


@dataclass(frozen=True)
class Proof:
    """What the blocks of one evaluation prove. `reason`: why the claim is refuted; empty when it stands."""

    inner_ms: float
    outer_ms: float
    strain: float
    band: float
    constant_ms: float
    blocks: int
    reason: str = ""
    busy: bool = False
    """Whether others use the processor so much that the reference is held up as well (cpu)."""
    taken_ms: float | None = None
    """The outer clock's time, where the host holds calls up and the claim is not to be believed to the band."""

    def describe(self) -> str:
        """Both numbers and the band, for the check."""
        allowed = f"{100 * self.band:g} % and {1e3 * self.constant_ms:g} us"
        strained = f", times {self.strain:.3g} for the load of the machine" if self.strain > 1.0 else ""
        return (
            f"inner {self.inner_ms:.4g} ms, outer {self.outer_ms:.4g} ms a call in the best of {self.blocks} blocks; "
            f"allowed above: {allowed}{strained}"
            + (
                ""
                if self.taken_ms is None
                else "; the clocks part, the host or the load holds calls up: the outer one's time is taken"
            )
        )


def prove(
    ours: Sequence[Block], theirs: Sequence[Block], claimed_ms: float, kind: str, *, host_bound: bool = False
) -> Proof:
    """Compares the clocks. `kind` is "cpu" or "cuda", `claimed_ms` the median that is to be reported; `theirs` are
    blocks of the reference beside `ours`, may be empty, and say how far the clocks part under the machine's load.
    `host_bound`: no number of flushes hides its host (cuda)."""
    band, constant = BAND[kind], CONSTANT_MS[kind]
    strain = max([1.0, *([statistics.median(_parting(block, constant) for block in theirs)] if theirs else [])])
    excused = LONE_WAIT
    if theirs:
        excused += MORE_WAIT * statistics.median(block.waited_ms / max(block.wall_ms, 1e-9) for block in theirs)
    seen = [(block.outer_ms(excused), block) for block in ours]
    outer, best = min(seen, key=lambda pair: pair[0] / _allowed(pair[1].inner_ms, strain, band, constant))
    busy = kind == "cpu" and (excused > BUSY_WAIT or strain > BUSY_STRAIN)
    proof = Proof(best.inner_ms, outer, strain, band, constant, len(ours), busy=busy)
    least = min(outer for outer, _ in seen)
    refuted = outer > _allowed(best.inner_ms, strain, band, constant)
    short = least > _allowed(claimed_ms, strain, band + SHORT_BAND, constant)
    taken = max(outer, least)
    if refuted or short:
        most = _allowed(min(best.inner_ms, claimed_ms), strain, band, GAP_MS) if kind == "cuda" else 0.0
        if kind == "cuda" and host_bound:
            most = _allowed(min(best.inner_ms, claimed_ms), strain, HOST_BAND, HOST_CONSTANT_MS)
        elif busy:
            most = BUSY_TIMES * min(best.inner_ms, claimed_ms)
        if taken <= most:
            return replace(proof, taken_ms=taken)
    if refuted:
        return _refuted(proof, f"a call is claimed to take {best.inner_ms:.4g} ms", outer)
    if short:
        return _refuted(proof, f"a call is claimed to take {claimed_ms:.4g} ms in short blocks", least)
    excused_only = outer > _allowed(best.inner_ms, 1.0, band, constant)
    if excused_only or least > _allowed(claimed_ms, 1.0, band + SHORT_BAND, constant):
        return replace(proof, taken_ms=taken)
    return proof


def _allowed(inner_ms: float, strain: float, band: float, constant_ms: float) -> float:
    """The most that the outer clock may see of a call."""
    return strain * inner_ms * (1.0 + band) + constant_ms


def _parting(block: Block, constant_ms: float) -> float:
    return max(0.0, block.outer_ms() - constant_ms) / max(block.inner_ms, 1e-9)


def _refuted(proof: Proof, claim: str, outer_ms: float) -> Proof:
    reason = f"{claim}, and the harness's clock saw {outer_ms:.4g} ms ({proof.describe()})"
    return replace(proof, reason=reason)


@dataclass(frozen=True)
class FirstCalls:
    """Milliseconds of calls on values that were never there before (`fresh`) and of all others (`again`)."""

    fresh: Sequence[float]
    again: Sequence[float]

    @property
    def ratio(self) -> float:
        """How much slower the fresh ones are, in the median; 1 where there are none of either."""
        if not self.fresh or not self.again:
            return 1.0
        return statistics.median(self.fresh) / max(statistics.median(self.again), 1e-9)

    @property
    def excess_ms(self) -> float:
        """The same in milliseconds, at least 0: what a process that has just waited needs more."""
        if not self.fresh or not self.again:
            return 0.0
        return max(0.0, statistics.median(self.fresh) - statistics.median(self.again))


@dataclass(frozen=True)
class ShortBlocks:
    """Wall time of blocks of one call for each set of inputs, all of them new: milliseconds from order to answer, of
    the candidate's, of the reference's, and of empty ones.

    What such a block is asked for can be neither remembered (its values were never there), nor computed before (its
    processes were stopped), nor left out (the outputs of any of its calls may be asked for).
    """

    calls: int
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)


SHORT_SHARE, SHORT_MS = {"cpu": 1.5, "cuda": 0.3}, {"cpu": 0.5, "cuda": 0.1}
"""Part, and milliseconds, by which a call of a short block may be above the claim: a message is part of it, on a
processor the waking of threads as well."""


def left_out(short: ShortBlocks, claimed_ms: float, their_ms: float, kind: str) -> str:
    """Why calls of long blocks seem to be left out, remembered, or put off: where a block can do none of this, the
    harness's clock sees more than is claimed, and more than the reference beside it explains. Empty when it does not.
    The quickest block of each kind counts, since others only have been disturbed."""
    if not (short.ours and short.theirs and short.empty):
        return ""
    empty = min(short.empty)
    ours, theirs = (max(0.0, min(walls) - empty) / short.calls for walls in (short.ours, short.theirs))
    usual = max(1.0, theirs / max(their_ms, 1e-9))
    allowed = (
        claimed_ms * (1.0 + SHORT_SHARE[kind]) * min(usual, 2.0) + 2.0 * max(0.0, theirs - their_ms) + SHORT_MS[kind]
    )
    if ours <= allowed:
        return ""
    return (
        f"a call is claimed to take {claimed_ms:.4g} ms; in blocks of {short.calls} calls on new values, none of which "
        f"can be left out, the outer clock saw {ours:.4g} ms (allowed: {allowed:.4g} ms)"
    )


FRESH_BAND = {"cpu": 0.5, "cuda": 0.3}
FRESH_CONSTANT_MS = 0.01


def remembers(ours: FirstCalls, theirs: FirstCalls, kind: str) -> str:
    """Why a candidate seems to keep results by what it knows of the inputs: calls on values that it has not seen take
    longer than those on values that it has, and the reference's do not. Empty when they do not."""
    if not ours.fresh or not ours.again:
        return ""
    fresh, again = statistics.median(ours.fresh), statistics.median(ours.again)
    usual = max(1.0, theirs.ratio)
    if fresh <= again * usual * (1.0 + FRESH_BAND[kind]) + FRESH_CONSTANT_MS + 2.0 * theirs.excess_ms:
        return ""
    return (
        f"a call on values that it has not seen takes {fresh:.4g} ms, on others {again:.4g} ms "
        f"(the reference: {theirs.ratio:.3g} times): results are kept from call to call"
    )
