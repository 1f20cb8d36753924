"""What the rounds of one timing gave."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from htam_agent.evaluation.proof import Block, FirstCalls, Proof, ShortBlocks, left_out, prove, remembers


@dataclass
class Rounds:
    """One ratio a round, milliseconds of the blocks' medians on both sides, and what speaks for or against them."""

    kind: str
    """"cpu" or "cuda"."""
    slots: int
    """Sets of inputs that calls took in turn."""
    ratios: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    candidate: list[float] = field(default_factory=list)
    claimed: list[float] = field(default_factory=list)
    """As `candidate`, before what was proven is put in its place."""
    busy_elsewhere: list[str] = field(default_factory=list)
    blocks: int = 0
    ours: list[Block] = field(default_factory=list)
    theirs: list[Block] = field(default_factory=list)
    our_first: FirstCalls = field(default_factory=lambda: FirstCalls([], []))
    their_first: FirstCalls = field(default_factory=lambda: FirstCalls([], []))
    compared: int = 0
    exact: int = 0
    """Of these, as many met the float64 rule too."""
    skipped: int = 0
    """Comparisons that were left out: the reference is not finite on the values."""
    host_bound: bool = False
    """No number of flushes hides the candidate's host (cuda)."""
    flushes: int = 1
    """Before each call, in the end (cuda)."""
    recalls: str = ""
    """Why it seems to keep results, after a second look."""
    fresh_taken: str = ""
    """Why the times are those of calls on values that were never there before."""
    unstoppable: str = ""
    """Why the candidate's processes could not be stopped while it was not its turn."""
    handing_ms: list[float] = field(default_factory=list)
    """What handing the outputs of one call over took."""
    handing_limit_ms: float = math.inf
    short: ShortBlocks | None = None
    """Blocks in which no call can be left out; None with one set of inputs."""
    works_on: str = ""
    """Why the candidate's process is not done when it says so."""

    set_aside: str = ""
    """Why its data may have been in the L2 (cuda)."""

    @property
    def proof(self) -> Proof | None:
        """What the long blocks prove of the times; None without any."""
        if not self.ours or not self.claimed:
            return None
        return prove(self.ours, self.theirs, statistics.median(self.claimed), self.kind, host_bound=self.host_bound)

    def take_proven(self) -> None:
        """Puts the outer clock's time in place of the claimed one, where the proof says so."""
        proof = self.proof
        if proof is None or proof.taken_ms is None:
            return
        longer = max(1.0, proof.taken_ms / max(statistics.median(self.claimed), 1e-9))
        self.candidate = [time_ms * longer for time_ms in self.claimed]
        self.ratios = [theirs / ours for theirs, ours in zip(self.reference, self.candidate, strict=True)]

    def look_at_first_calls(self, ours: FirstCalls, theirs: FirstCalls) -> None:
        """Says that results seem to be kept from call to call, where calls on new values stand out. On a busy processor
        such calls, which come right after a message, stand out for anybody now and then: then their own time is
        taken, so that nobody is accused, and whoever keeps results gains nothing."""
        found = remembers(ours, theirs, self.kind)
        proof = self.proof
        if not found or proof is None or not proof.busy:
            self.recalls = found
            return
        fresh_ms = statistics.median(ours.fresh)
        longer = max(1.0, ours.ratio, fresh_ms / max(statistics.median(self.candidate), 1e-9))
        self.candidate = [time_ms * longer for time_ms in self.candidate]
        self.ratios = [theirs_ms / ours_ms for theirs_ms, ours_ms in zip(self.reference, self.candidate, strict=True)]
        self.fresh_taken = (
            f"calls on new values took {longer:.3g} times as long as others, which proves nothing on a processor that "
            "is this busy: their time is taken"
        )

    def begin_again(self) -> None:
        """Forgets what was measured under a cover that did not suffice."""
        for values in (self.ratios, self.reference, self.candidate, self.claimed, self.ours, self.theirs):
            values.clear()
        self.our_first, self.their_first = FirstCalls([], []), FirstCalls([], [])
        self.short = None

    @property
    def suspected(self) -> bool:
        """Whether calls on values that were never there stand out."""
        return bool(remembers(self.our_first, self.their_first, self.kind))

    @property
    def refuted(self) -> bool:
        """Whether the long blocks so far speak against the claim."""
        proof = self.proof
        return proof is None or bool(proof.reason)

    @property
    def late(self) -> str:
        """Why outputs may be computed when they are asked for; empty when handing them over is quick. What a message to
        a process and back takes on this machine just now, the reference's empty blocks say: it is allowed as well."""
        busy = min(self.short.empty, default=0.0) if self.short is not None else 0.0
        limit = self.handing_limit_ms + busy
        if not self.handing_ms or min(self.handing_ms) <= limit:
            return ""
        return (
            f"handing over the outputs of a call takes {min(self.handing_ms):.4g} ms at least, where copying them "
            f"takes less than {limit:.4g} ms: they may be computed then"
        )

    @property
    def distrust(self) -> str:
        """Why the candidate's times cannot be believed; empty when they can."""
        if 2 * len(self.busy_elsewhere) > self.blocks:
            return self.busy_elsewhere[0]
        proof = self.proof
        if proof is None:
            return "no block was long enough to prove its times"
        skipped = ""
        if self.short is not None and self.candidate:
            claimed, theirs = statistics.median(self.candidate), statistics.median(self.reference)
            skipped = left_out(self.short, claimed, theirs, self.kind)
        known = self.unstoppable or self.late or self.set_aside or self.works_on or self.recalls
        return known or proof.reason or skipped
