"""The GPU kernels of one call with their times, by torch's profiler (CUPTI). Runs in the candidate's process: evidence.

It sees kernels however they were launched, and sets CUPTI up in some 20 ms at its first use (measured on an H200),
after which nothing is timed any more. Where CUPTI is missing or refused the list is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from htam_agent.evaluation.messages import KernelTime

MOST = 400


@contextmanager
def kernels_timed(enabled: bool, device: str) -> Iterator[list[KernelTime]]:
    """Collects the kernels that run inside the block, each name once; the device is waited for at its end."""
    found: list[KernelTime] = []
    if not enabled or device == "cpu":
        yield found
        return
    import torch
    from torch.autograd.profiler import profile

    profiler = profile(use_cpu=False, use_device="cuda", use_kineto=True)
    context: AbstractContextManager[object] = profiler  # whose methods have type information
    with context:
        yield found
        torch.cuda.synchronize(device)
    runs: dict[str, list[float]] = {}
    for event in profiler.function_events or ():
        if str(event.device_type).endswith("CUDA"):
            runs.setdefault(str(event.name)[:300], []).append(float(event.time_range.elapsed_us()))
    found += [KernelTime(name=name, microseconds=sum(times), count=len(times)) for name, times in runs.items()][:MOST]
