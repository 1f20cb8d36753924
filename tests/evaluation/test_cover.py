"""Flushes before a call: as many as hide the host, and no more than one where it is hidden."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from htam_agent.evaluation.cover import LONG_MS, MOST_FLUSHES, flushes_for, flushes_for_short


@given(st.floats(0.001, 0.4), st.floats(0.001, 3.0), st.floats(0.02, 0.08))
def test_the_device_is_busy_until_the_host_has_launched(host: float, device: float, flush: float) -> None:
    count = flushes_for(max(host, device), max(host, flush + device), flush)
    assert 1 <= count <= MOST_FLUSHES
    # Either the flushes alone outlast the host, or the device's own work does while the host runs ahead.
    assert count * flush >= host or count * flush + device >= host or count == MOST_FLUSHES
    if device > 10 * host and device > 4 * flush:
        assert count * flush <= 1.4 * device + flush


@given(st.floats(1e-4, 100.0))
def test_only_short_calls_need_several(synchronous: float) -> None:
    assert 1 <= flushes_for_short(synchronous) <= MOST_FLUSHES
    assert flushes_for_short(LONG_MS + synchronous) == 1
