"""Occupancy: known figures of NVIDIA's calculator, and what must hold for every block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.backends.occupancy import LIMITS, compute_capability, limits_of, occupancy

HOPPER = LIMITS[90]
architectures = st.sampled_from(sorted(LIMITS))
blocks = st.tuples(st.integers(1, 1024), st.integers(0, 255), st.integers(0, 230 << 10))


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "resident", "fraction", "cause"),
    [
        (256, 32, 0, 8, 1.0, "registers"),  # 8 * 256 * 32 registers are exactly all of them
        (256, 24, 0, 8, 1.0, "threads"),
        (256, 64, 0, 4, 0.5, "registers"),
        (256, 255, 0, 1, 0.125, "registers"),
        (1024, 40, 0, 1, 0.5, "registers"),
        (32, 16, 0, 32, 0.5, "blocks"),
        (256, 32, 100 << 10, 2, 0.25, "shared memory"),
        (1024, 32, 192 << 10, 1, 0.5, "shared memory"),
        (1024, 32, 227 << 10, 1, 0.5, "shared memory"),
        (1024, 32, 228 << 10, 0, 0.0, "shared memory"),
    ],
)
def test_known_figures_for_compute_capability_9(
    threads: int, registers: int, shared: int, resident: int, fraction: float, cause: str
) -> None:
    found = occupancy(HOPPER, threads, registers, shared)
    assert (found.blocks, found.fraction, found.limited_by) == (resident, fraction, cause)


def test_a_smaller_architecture_holds_fewer_blocks() -> None:
    assert occupancy(LIMITS[86], 32, 16, 0).blocks == 16
    assert occupancy(LIMITS[89], 32, 16, 0).blocks == 24
    assert occupancy(LIMITS[75], 1024, 32, 0).fraction == 1.0


@given(architectures, blocks)
def test_what_is_resident_fits(capability: int, block: tuple[int, int, int]) -> None:
    limits = LIMITS[capability]
    threads, registers, shared = block
    found = occupancy(limits, threads, registers, shared)
    warps = -(-threads // 32)
    assert 0.0 <= found.fraction <= 1.0
    assert found.blocks * warps * 32 <= limits.threads
    assert found.blocks <= limits.blocks
    assert found.blocks * warps * 32 * registers <= 65_536
    assert found.blocks * (shared + limits.reserved_shared_bytes) <= limits.shared_bytes or found.blocks == 0


@given(architectures, blocks)
def test_one_block_more_would_not_fit(capability: int, block: tuple[int, int, int]) -> None:
    limits = LIMITS[capability]
    threads, registers, shared = block
    found = occupancy(limits, threads, registers, shared)
    warps = -(-threads // 32)
    more = found.blocks + 1
    taken = -(-(shared + limits.reserved_shared_bytes) // limits.shared_unit) * limits.shared_unit
    of_a_warp = -(-registers * 32 // 256) * 256
    # A block's warps are spread over four schedulers, so a few warps' worth of registers may be left over.
    unused_warps = 3 if of_a_warp == 0 else 16_384 // of_a_warp * 4 - found.blocks * warps
    assert (
        more * warps * 32 > limits.threads
        or more > limits.blocks
        or shared > limits.shared_bytes_per_block
        or more * taken > limits.shared_bytes
        or unused_warps < warps
    )


@given(architectures, blocks, st.integers(0, 100), st.integers(0, 10_000))
def test_asking_for_more_never_raises_it(
    capability: int, block: tuple[int, int, int], registers: int, shared: int
) -> None:
    limits = LIMITS[capability]
    less = occupancy(limits, *block)
    more = occupancy(limits, block[0], min(255, block[1] + registers), block[2] + shared)
    assert more.fraction <= less.fraction


@pytest.mark.parametrize("block", [(0, 32, 0), (1025, 32, 0), (32, 256, 0), (32, 32, -1)])
def test_impossible_blocks_are_refused(block: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="impossible block"):
        occupancy(HOPPER, *block)


def test_an_unknown_architecture_is_not_guessed() -> None:
    assert limits_of("sm_90") == limits_of("sm_90a") == HOPPER
    assert limits_of("sm_61") is None
    assert limits_of("x86_64") is None
    assert compute_capability("sm_100") == 100
