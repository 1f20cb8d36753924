"""Static facts of CUDA kernels, read from the assembler's own report (`--ptxas-options=-v` in NVRTC's program log)."""

from __future__ import annotations

import re

from htam_agent.verdict import KernelResources

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_REPORT = re.compile(r"^ptxas\s+(info\s*:|\.\s).*$", re.MULTILINE)


def parse_resources(log: str) -> list[KernelResources]:
    """One record for each entry function, in source order (the assembler reports the last one first).

    `spill_bytes` is the sum of spill stores and spill loads of one thread.
    """
    kernels: list[KernelResources] = []
    sections = _ENTRY.split(log)[1:]
    for name, body in zip(sections[::2], sections[1::2], strict=True):
        spills = _SPILLS.search(body)
        used = _USED.search(body)
        shared = _SHARED.search(body)
        kernels.append(
            KernelResources(
                name=name,
                registers=int(used[1]) if used else None,
                spill_bytes=int(spills[1]) + int(spills[2]) if spills else None,
                static_shared_bytes=int(shared[1]) if shared else (0 if used else None),
            )
        )
    return kernels[::-1]


def without_report(log: str) -> str:
    """The log without the assembler's report lines: warnings and errors alone."""
    return _REPORT.sub("", log).strip("\0 \n")
