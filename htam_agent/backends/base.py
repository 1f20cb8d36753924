"""The Backend seam: what builds kernels for one kind of device, and what that device can do.

Implementations: `backends/cpp.py` (g++ with OpenMP) and `backends/cuda.py` (NVRTC). `backends/registry.py` finds one by
name. A backend never runs a candidate; it compiles, describes and measures the device with programs of its own.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol, runtime_checkable

from pydantic import Field

from htam_agent.verdict import Ceilings, CompileResult, DeviceFacts, KernelResources, Launch
from htam_agent.words import Backend as BackendName
from htam_agent.words import Record


class Availability(Record):
    """Whether something works on this machine; if not, why, and what a user can do."""

    ok: bool
    reason: str = ""
    remedy: str = ""


class BuildLimits(Protocol):
    """What a build may take at most. `evaluation.bench.Limits` fits."""

    @property
    def build_seconds(self) -> float: ...


class DefaultLimits(Record):
    """Limits of a build on its own."""

    build_seconds: float = Field(60.0, gt=0.0)


class Occupancy(Record):
    """`fraction`: resident warps over the most that a multiprocessor holds, 0 when the block does not fit at all."""

    fraction: float
    blocks: int
    """Resident blocks of one multiprocessor."""
    limited_by: str
    """registers, shared memory, threads or blocks."""


@runtime_checkable
class Backend(Protocol):
    """One kind of device."""

    @property
    def name(self) -> BackendName: ...

    def available(self) -> Availability:
        """Whether kernels can be built *and run* here."""
        ...

    def can_build(self) -> Availability:
        """Whether kernels can be built here (CUDA sources compile without a GPU)."""
        ...

    def target(self) -> str:
        """What binaries are made for: "sm_90", or "cpp" for this machine's processor."""
        ...

    def build_key(self, source: str) -> str:
        """SHA-256 over source, flags, compiler version and target: two equal keys give equal binaries."""
        ...

    def build(self, source: str, folder: Path, limits: BuildLimits) -> CompileResult:
        """Compile into `folder / binary_name(source, target)`. Nothing is cached and no device is touched, so that a
        confined child process can call it. A source that does not compile is a value, never an exception; a compiler
        that is missing raises BackendUnavailable."""
        ...

    def device_facts(self) -> DeviceFacts:
        """The device and the versions that numbers depend on. Raises BackendUnavailable without a device."""
        ...

    def ceilings(self) -> Ceilings:
        """What the device reaches at most, measured once on a machine and kept on disk (see ceilings.py)."""
        ...

    def occupancy(self, resources: KernelResources, launch: Launch) -> Occupancy | None:
        """Static occupancy of a launch; None where the notion does not apply or a number is unknown."""
        ...


def binary_name(source: str, target: str) -> str:
    """File name under which a candidate's launcher looks for its prebuilt binary in $HTAM_KERNEL_DIR."""
    digest = hashlib.sha256(source.encode() + b"\0" + target.encode()).hexdigest()[:32]
    return digest + (".so" if target == "cpp" else ".cubin")
