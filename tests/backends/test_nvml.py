"""What NVML's answers become, and what is said where there is no GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.backends import nvml
from htam_agent.backends.probe_cuda import ask_device, has_device_file


@given(st.integers(0, 2**12 - 1))
def test_every_bit_but_idle_is_named_once(bits: int) -> None:
    words = nvml.reasons_in_words(bits)
    known = bits & sum(nvml.REASONS)
    unknown = bits & ~0x1 & ~known
    assert len(words) == len(set(words)) == known.bit_count() + (1 if unknown else 0)
    assert (f"{unknown:#x}" in " ".join(words)) == bool(unknown)


def test_an_idle_gpu_is_not_throttled() -> None:
    assert nvml.reasons_in_words(0x1) == []


def test_the_rate_of_the_memory_counts_two_transfers_a_clock() -> None:
    # H200: 3201 MHz over 6016 bits, 4.8 TB/s in its data sheet.
    assert nvml.theoretical_bytes_per_second(3201e6, 6016) == pytest.approx(4.814e12, rel=1e-3)


@pytest.mark.skipif(has_device_file(), reason="this machine has an NVIDIA driver")
def test_without_a_driver_the_reason_is_said() -> None:
    assert nvml.snapshot(0) is None
    assert "nvidiactl" in nvml.why_absent(0)
    assert nvml.dram_bytes_per_second(0) == 0.0


@pytest.mark.gpu
def test_a_gpu_tells_its_state() -> None:
    answer = ask_device(0)
    if answer.facts is None:
        pytest.skip(answer.reason)
    if "not installed" in nvml.why_absent(0):
        pytest.skip(nvml.why_absent(0))
    assert nvml.why_absent(0) == ""
    state = nvml.snapshot(0)
    assert state is not None
    assert 100 <= (state.sm_clock_mhz or 0) <= (state.sm_clock_limit_mhz or 0) + 50
    assert 0 < (state.temperature_celsius or 0) < 110
    assert 10 < (state.power_watts or 0) < 2000
    by_driver = answer.dram_bytes_per_second
    assert nvml.dram_bytes_per_second(0) == pytest.approx(by_driver, rel=0.05)


@pytest.mark.gpu
def test_a_device_that_is_not_there_is_no_state() -> None:
    if ask_device(0).facts is None:
        pytest.skip(ask_device(0).reason)
    assert nvml.snapshot(63) is None
    assert nvml.why_absent(63)
