"""What a run measured beside the time of the kernel, as words that a coder can act on."""

from __future__ import annotations

from htam_agent.verdict import KernelCounters, RunResult

OWN_SHARE = 0.5
MORE_TRAFFIC = 1.3
"""From so many times the unavoidable bytes on, what a kernel moves is worth a word."""
LOW_OCCUPANCY_PERCENT = 40.0


def measured_words(run: RunResult, unavoidable_bytes: int) -> list[str]:
    """Sentences about who decides the time: the host, a library's kernels, or what the counters saw."""
    words = []
    calls, device = run.call_ms, run.device_ms
    if run.launch_bound and calls is not None and device is not None:
        words.append(
            f"A call takes the host {calls.candidate:.4g} ms and the device {device.candidate:.4g} ms: less work in "
            "Python for each call, fewer launches, or a CUDA graph make it faster, a better kernel does not."
        )
    if run.own_share is not None and run.own_share < OWN_SHARE:
        words.append(
            f"Its own kernels take {run.own_share:.0%} of the time, library calls the rest: the library's part decides."
        )
    return [*words, *_of_counters(run.counters, unavoidable_bytes)]


def _of_counters(counters: list[KernelCounters], unavoidable_bytes: int) -> list[str]:
    moved = sum((item.dram_bytes_read or 0.0) + (item.dram_bytes_written or 0.0) for item in counters)
    words = []
    if unavoidable_bytes and moved > MORE_TRAFFIC * unavoidable_bytes:
        times = moved / unavoidable_bytes
        words.append(f"The counters saw {moved:,.0f} bytes of memory traffic, {times:.2f} times the unavoidable ones.")
    longest = max(counters, key=lambda item: item.nanoseconds or 0.0, default=None)
    if longest is not None and (longest.occupancy_percent or 100.0) < LOW_OCCUPANCY_PERCENT:
        words.append(
            f"Only {longest.occupancy_percent:.0f} % of the warps that fit were resident in {longest.kernel[:60]}."
        )
    return words
