"""The two clocks: an honest kernel always passes, a claim below the truth never does."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.evaluation.proof import BAND, CONSTANT_MS, GAP_MS, SHORT_BAND, Block, FirstCalls, prove, remembers
from htam_agent.evaluation.rounds import Rounds

seeds = st.integers(0, 2**32)
lengths = st.floats(0.002, 50.0)


def device_block(host: float, device: float, flush: float, calls: int, overhead: float) -> tuple[float, float, float]:
    """Inner median, wall and empty wall of a block on a device that a host feeds: the queue, call by call."""

    def run(host_ms: float, device_ms: float) -> tuple[list[float], float]:
        now = free = 0.0
        inner = []
        for _ in range(calls):
            flushed = max(now, free) + flush
            launched = now + 0.002 + host_ms
            ended = max(flushed, launched) + device_ms if device_ms else flushed
            inner.append(ended - flushed)
            now, free = now + 0.004 + host_ms, ended
        return inner, max(now, free) + overhead

    inner, wall = run(host, device)
    _, empty = run(0.0, 0.0)
    return statistics.median(inner), wall, empty


@given(st.floats(0.0, 0.3), lengths, st.floats(0.02, 0.06), st.floats(0.0, 0.5))
def test_the_bound_holds_for_every_honest_kernel(host: float, device: float, flush: float, overhead: float) -> None:
    """Device-bound, host-bound and everything between: the argument of the module, run call by call."""
    calls = max(2, round(110 / (max(host, device + flush))))
    inner, wall, empty = device_block(host, device, flush, calls, overhead)
    blocks = [Block(inner, wall, empty + overhead, calls)] * 3
    assert prove(blocks, [], inner, "cuda").reason == ""
    # The harness's clock finds the device's time whatever the claim.
    assert blocks[0].outer_ms() >= 0.95 * device - CONSTANT_MS["cuda"]


@given(lengths, st.floats(0.05, 0.9), st.floats(0.0, 0.3), st.floats(0.02, 0.06))
def test_a_lie_is_found_wherever_it_is_larger_than_the_band(
    device: float, share: float, host: float, flush: float
) -> None:
    calls = max(2, round(110 / max(host, device + flush)))
    _, wall, empty = device_block(host, device, flush, calls, 0.2)
    lies = [Block(device * share, wall, empty, calls)] * 3
    gained = device * (1 - share)
    if gained > (BAND["cuda"] + 0.02) * device + GAP_MS:
        proof = prove(lies, [], device * share, "cuda")
        assert "claimed" in proof.reason
        assert f"{device * share:.4g}" in proof.reason


@given(lengths, lengths, st.floats(0.0, 3.0), seeds)
def test_a_busy_processor_refutes_nobody_and_excuses_no_lie(ours: float, theirs: float, load: float, seed: int) -> None:
    """Calls of both sides wait for a processor, which medians do not show; a liar's calls wait as well."""
    chance = random.Random(seed)

    def block(milliseconds: float, claim: float = 1.0) -> Block:
        calls = max(2, round(110 / milliseconds))
        waited = calls * milliseconds * load * chance.uniform(0.8, 1.2)
        wall = calls * milliseconds * chance.uniform(1.0, 1.05) + waited + 0.3
        return Block(claim * milliseconds, wall, 0.2, calls, waited_ms=waited)

    references = [block(theirs) for _ in range(3)]
    proof = prove([block(ours) for _ in range(3)], references, ours, "cpu")
    assert proof.reason == ""
    assert 1.0 <= proof.strain < 1.2
    if ours > 0.05:
        lie = prove([block(ours, 0.7) for _ in range(3)], references, 0.7 * ours, "cpu")
        assert lie.reason or (lie.taken_ms or 0.0) > 0.95 * ours


def test_a_wait_that_only_the_candidate_has_is_no_excuse() -> None:
    alone = [Block(0.5, 111.0, 1.0, 100, waited_ms=55.0)] * 3
    assert prove(alone, [Block(1.0, 111.0, 1.0, 100)] * 3, 0.5, "cpu").reason
    both = prove(alone, [Block(0.5, 111.0, 1.0, 100, waited_ms=50.0)] * 3, 0.5, "cpu")
    assert both.reason == ""


def test_one_honest_block_of_three_vouches_for_no_other_claim() -> None:
    """The claim that is reported is compared too: short blocks may not say less than the long ones prove."""
    long = [Block(1.0, 101.0, 1.0, 100)] * 3
    assert prove(long, [], 1.0, "cuda").reason == ""
    assert prove(long, [], 1.0 / (1 + SHORT_BAND), "cuda").reason == ""
    assert "short blocks" in prove(long, [], 0.7, "cuda").reason


def test_a_host_that_holds_calls_up_unevenly_accuses_nobody_and_a_lie_gains_nothing() -> None:
    """60 us in the median, 85 by the outer clock, and no cover hides the host."""
    blocks = [Block(0.060, 119.0, 34.0, 1000)] * 2
    assert prove(blocks, [], 0.060, "cuda").reason
    proof = prove(blocks, [], 0.060, "cuda", host_bound=True)
    assert proof.reason == ""
    assert proof.taken_ms == pytest.approx(0.085)
    assert "outer one's time is taken" in proof.describe()
    assert prove([Block(0.030, 119.0, 34.0, 1000)] * 2, [], 0.030, "cuda", host_bound=True).reason, "too much of a lie"
    rounds = Rounds("cuda", 3, reference=[0.170] * 6, claimed=[0.060] * 6, ours=blocks, host_bound=True)
    rounds.take_proven()
    assert rounds.ratios == pytest.approx([2.0] * 6)
    assert not rounds.refuted


def test_a_gap_of_microseconds_is_no_lie_and_no_gain() -> None:
    """A call that waits for the device lets it idle until the next flush; half of 37 us is no gap."""
    blocks = [Block(0.020, 1000 * (0.034 + 0.030), 34.0, 1000)] * 2
    proof = prove(blocks, [], 0.020, "cuda")
    assert proof.reason == ""
    assert proof.taken_ms == pytest.approx(0.030)
    assert prove([Block(0.020, 1000 * (0.034 + 0.040), 34.0, 1000)] * 2, [], 0.020, "cuda").reason


def test_what_a_process_needs_after_a_wait_is_no_memory() -> None:
    """The reference's first calls take 12 us more as well, of a kernel that is ten times as long."""
    theirs = FirstCalls([0.412] * 6, [0.400] * 20)
    assert remembers(FirstCalls([0.072] * 6, [0.040] * 20), theirs, "cuda") == ""
    assert "not seen" in remembers(FirstCalls([0.040] * 6, [0.010] * 20), FirstCalls([0.04] * 6, [0.04] * 9), "cuda")


def test_one_long_call_does_not_vouch_for_many_short_ones() -> None:
    """The sum is right, the median is what counts."""
    proof = prove([Block(1e-4, 110.0, 0.5, 100, first_ms=1e6)] * 3, [], 1e-4, "cpu")
    assert "claimed to take 0.0001 ms" in proof.reason
    assert "saw 1.0" in proof.reason


def test_the_check_states_both_numbers_and_the_band() -> None:
    said = prove([Block(1.0, 102.0, 1.0, 100)], [], 1.0, "cuda").describe()
    assert "inner 1 ms" in said
    assert "outer 1.01 ms" in said
    assert "5 %" in said


@given(st.floats(0.005, 20), st.integers(1, 12), seeds)
def test_what_is_kept_from_call_to_call_shows_on_new_values(milliseconds: float, count: int, seed: int) -> None:
    chance = random.Random(seed)

    def calls(value: float, number: int) -> list[float]:
        return [value * chance.uniform(0.98, 1.02) for _ in range(number)]

    honest = FirstCalls(calls(milliseconds, count), calls(milliseconds, 20))
    assert remembers(honest, honest, "cuda") == ""
    cached = FirstCalls(calls(milliseconds, count), calls(milliseconds / 4, 20))
    noticed = remembers(cached, honest, "cuda")
    assert bool(noticed) == (milliseconds * 0.98 > milliseconds / 4 * 1.02 * 1.35 + 0.03) or milliseconds < 0.1
    assert remembers(FirstCalls([], []), honest, "cuda") == ""
    slow_both = FirstCalls(calls(3 * milliseconds, count), calls(milliseconds, 20))
    assert remembers(slow_both, slow_both, "cpu") == "", "the reference is slow on new values as well"


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_bands_are_narrow(kind: str) -> None:
    assert BAND[kind] <= 0.15
    assert CONSTANT_MS[kind] <= 0.005


def timed(load: float) -> Rounds:
    """A CPU timing of a kernel of 1 ms against a reference of 2 ms, both slowed by `load` on the outer clock."""
    rounds = Rounds("cpu", 3)
    rounds.reference, rounds.claimed, rounds.candidate = [2.0] * 6, [1.0] * 6, [1.0] * 6
    rounds.ratios = [2.0] * 6
    rounds.ours = [Block(1.0, 100.0 * load, 0.2, 100)] * 3
    rounds.theirs = [Block(2.0, 100.0 * load, 0.2, 50)] * 3
    return rounds


KEEPING = FirstCalls([3.0] * 6, [1.0] * 20)
STEADY = FirstCalls([2.0] * 6, [2.0] * 20)


def test_results_that_are_kept_are_an_accusation_on_a_quiet_processor() -> None:
    rounds = timed(load=1.0)
    rounds.look_at_first_calls(KEEPING, STEADY)
    assert "results are kept" in rounds.distrust
    assert rounds.fresh_taken == ""


def test_on_a_busy_processor_the_time_of_new_values_is_taken_and_nobody_accused() -> None:
    rounds = timed(load=1.6)
    rounds.look_at_first_calls(KEEPING, STEADY)
    assert rounds.recalls == ""
    assert "new values" in rounds.fresh_taken
    assert rounds.candidate == [3.0] * 6
    assert max(rounds.ratios) < 1.0, "whoever keeps results gains nothing"
