"""The cover: as many flushes before each call as hide its host, tried on a queue that a host fills call by call."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htam_agent.evaluation.cover import LONG_MS, MOST_FLUSHES, Cover, cover_for, flushes_for_short, joined
from htam_agent.evaluation.proof import LEAST_MS, Block, prove
from htam_agent.evaluation.stopwatch import LEAD

LAUNCH, EVENT = 0.0025, 0.001
"""Milliseconds of the host for queueing a flush and an event."""
DEPTH = 1024
"""Entries that a device's queue holds before the host has to wait."""
hosts, devices, flushes_ms = st.floats(0.003, 0.35), st.floats(0.003, 2.0), st.floats(0.03, 0.06)


class Queue:
    """A device and the host that feeds it; all in milliseconds."""

    def __init__(self, seed: int, jitter: float) -> None:
        self._chance = random.Random(seed)
        self._jitter = jitter
        self._host = self._device = 0.0
        self._ends: list[float] = []

    def queue(self, host: float, device: float) -> float:
        """One entry of the queue; when the device has ended it."""
        self._host += host
        if len(self._ends) >= DEPTH:
            self._host = max(self._host, self._ends[-DEPTH])
        self._device = max(self._device, self._host) + device
        self._ends.append(self._device)
        return self._device

    def block(self, calls: int, cover: int, flush: float, host: float, device: float) -> tuple[list[float], float]:
        """Inner times and wall time of a block as native/clock.c runs it: the host's first call is four times as
        slow, and every twentieth or so stumbles."""
        inner = []
        for number in range(calls):
            for _ in range(cover + (LEAD if cover and not number else 0)):
                begun = self.queue(LAUNCH, flush)
            begun = self.queue(EVENT, 0.0)
            slow = 4.0 if number == 0 and host else 1.0
            stumble = self._jitter * host * (self._chance.random() < 0.05)
            self.queue(host * slow + stumble, device)
            inner.append(self.queue(EVENT, 0.0) - begun)
        return inner, max(self._host, self._device)


def block(seed: int, calls: int, cover: int, flush: float, host: float, device: float, jitter: float = 3.0) -> Block:
    inner, wall = Queue(seed, jitter).block(calls, cover, flush, host, device)
    _, empty = Queue(seed, 0.0).block(calls, cover, flush, 0.0, 0.0)
    return Block(statistics.median(inner), wall, empty, calls)


@settings(max_examples=60)
@given(hosts, devices, flushes_ms, st.integers(0, 2**32))
def test_behind_its_cover_both_clocks_read_the_device(host: float, device: float, flush: float, seed: int) -> None:
    """Whatever the host and the device take: to 1 % on the inner clock, to the tight band on the outer one."""
    cover = cover_for(host, max(host, device), flush)
    assert cover.hides
    assert 1 <= cover.flushes <= MOST_FLUSHES
    calls = math.ceil(LEAST_MS["cuda"] * 1.1 / (cover.flushes * flush + device))
    seen = block(seed, calls, cover.flushes, flush, host, device)
    assert seen.inner_ms == pytest.approx(device, rel=0.01)
    assert seen.outer_ms() == pytest.approx(device, rel=0.02, abs=0.003)
    assert not seen.parts
    proof = prove([seen] * 2, [], seen.inner_ms, "cuda")
    assert (proof.reason, proof.taken_ms) == ("", None)


@settings(max_examples=40)
@given(hosts, devices, flushes_ms, st.integers(0, 2**32))
def test_the_first_calls_are_like_all_others(host: float, device: float, flush: float, seed: int) -> None:
    """A block's first calls find a cold host; three calls on new values are compared with what comes later."""
    cover = cover_for(host, max(host, device), flush)
    inner, _ = Queue(seed, 0.0).block(3, cover.flushes, flush, min(host, 0.12), device)
    assert inner[1:] == pytest.approx([device] * 2, rel=0.01)


@settings(max_examples=40)
@given(st.floats(0.05, 0.35), st.floats(0.01, 0.3), st.floats(0.3, 0.8), flushes_ms, st.integers(0, 2**32))
def test_a_lie_does_not_vanish_behind_more_flushes(
    host: float, device: float, share: float, flush: float, seed: int
) -> None:
    for cover in (1, 4, 16, MOST_FLUSHES):
        seen = block(seed, 100, cover, flush, host, device)
        lie = Block(share * device, seen.wall_ms, seen.empty_ms, seen.calls)
        if (1.0 - share * 1.05) * device > 0.006:
            assert lie.parts


def test_a_host_that_was_thought_faster_is_hidden_by_more_flushes() -> None:
    """Too few flushes: the clocks part or read the host; behind twice as many, twice, they read the device."""
    seen = {cover: block(1, 400, cover, 0.034, 0.120, 0.020) for cover in (1, 2, 4, 8)}
    assert seen[1].inner_ms > 0.040
    assert seen[8].inner_ms == pytest.approx(0.020, rel=0.01)
    assert not seen[8].parts


def test_a_long_call_needs_no_more_than_one_flush_and_what_none_hides_is_said() -> None:
    assert cover_for(0.05, 1.5, 0.034) == Cover(1)
    assert cover_for(0.05, 0.35, 0.034) == Cover(1)
    assert cover_for(3.0, 3.0, 0.034) == Cover(1, hides=False)
    assert cover_for(0.065, 0.066, 0.034) == Cover(4)
    assert cover_for(9.0, 0.066, 0.034) == cover_for(0.066, 0.066, 0.034), "no host takes longer than the call"
    assert joined([Cover(4), Cover(1, hides=False)]) == Cover(4, hides=False)
    # The L2 stays warm: nothing covers the host.
    assert cover_for(0.05, 0.06, 0.0) == Cover(0, hides=False)
    assert cover_for(0.05, 0.6, 0.0) == Cover(0)


@given(st.floats(1e-4, 100.0))
def test_only_short_calls_need_several(synchronous: float) -> None:
    assert 1 <= flushes_for_short(synchronous) <= MOST_FLUSHES
    assert flushes_for_short(LONG_MS + synchronous) == 1
