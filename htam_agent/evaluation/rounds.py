"""What the rounds of one timing gave."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from htam_agent.evaluation.proof import Block, FirstCalls, Proof, prove, remembers


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
    busy_elsewhere: list[str] = field(default_factory=list)
    blocks: int = 0
    ours: list[Block] = field(default_factory=list)
    theirs: list[Block] = field(default_factory=list)
    our_first: FirstCalls = field(default_factory=lambda: FirstCalls([], []))
    their_first: FirstCalls = field(default_factory=lambda: FirstCalls([], []))
    compared: int = 0
    skipped: int = 0
    """Comparisons that were left out: the reference is not finite on the values."""
    works_on: str = ""
    """Why the candidate's process is not done when it says so."""

    @property
    def proof(self) -> Proof | None:
        """What the long blocks prove of the times; None without any."""
        if not self.ours or not self.candidate:
            return None
        return prove(self.ours, self.theirs, statistics.median(self.candidate), self.kind)

    @property
    def distrust(self) -> str:
        """Why the candidate's times cannot be believed; empty when they can."""
        if 2 * len(self.busy_elsewhere) > self.blocks:
            return self.busy_elsewhere[0]
        proof = self.proof
        if proof is None:
            return "no block was long enough to prove its times"
        return self.works_on or remembers(self.our_first, self.their_first, self.kind) or proof.reason
