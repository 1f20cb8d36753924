"""Which GPU the processes of a bench see: the one on which the candidate is judged, and no other.

On a second GPU work could be done that neither clock nor profiler looks at. CUDA reads CUDA_VISIBLE_DEVICES when it is
initialised, so the zygote is started with it, by the driver's own name of the device, which then is number 0 for every
worker. A process that a candidate starts could set it anew: landlock opens no other GPU's device file. Sources: CUDA's
programming guide (environment variables), the driver's documentation (device files are named by minor number).
"""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass

SHARED_FILES = "/dev/nvidia[!0-9]*"
"""Of the driver itself, whatever device is used (nvidiactl, nvidia-uvm, nvidia-caps ...)."""
ONE_GPU = "/dev/nvidia[0-9]*"


@dataclass(frozen=True)
class Visible:
    """`names`: the value of CUDA_VISIBLE_DEVICES; `device`: what torch calls the device there; `files`: patterns of the
    device files that belong to it; `missing`: why other GPUs are not kept out, empty when they are."""

    names: str = ""
    device: str = "cpu"
    files: tuple[str, ...] = ()
    missing: str = ""


def visible_device(cuda: bool, index: int) -> Visible:
    """What workers may see for a backend on the GPU `index` of this process's own visible ones, or on a processor."""
    if not cuda:
        return Visible()
    from htam_agent.backends.nvml import minor_number, unique_name

    name = unique_name(index) or listed(os.environ.get("CUDA_VISIBLE_DEVICES"), index)
    return narrowed(name, index, minor_number(index), sorted(glob.glob(ONE_GPU)))


def narrowed(name: str, index: int, minor: int | None, found: list[str]) -> Visible:
    """The same from facts: the device's name for CUDA_VISIBLE_DEVICES (empty: not known), its minor number (None: not
    known) and the GPUs' device files that there are."""
    own = (SHARED_FILES, f"/dev/nvidia{minor}")
    every = (SHARED_FILES, ONE_GPU)
    several = len([path for path in found if re.fullmatch(r"/dev/nvidia\d+", path)]) > 1
    files = own if several and minor is not None else every
    if not name:
        why = "nothing names the device, so that all GPUs stay visible" if several else ""
        return Visible(os.environ.get("CUDA_VISIBLE_DEVICES", ""), f"cuda:{index}", files, why)
    missing = "the device's minor number is not known, so that other GPUs' files stay open" if several else ""
    return Visible(name, "cuda:0", files, missing if minor is None else "")


def listed(value: str | None, index: int) -> str:
    """The entry of CUDA_VISIBLE_DEVICES with this index, which is the index itself where the variable is not set; empty
    where there is none."""
    if value is None:
        return str(index)
    names = [name.strip() for name in value.split(",")]
    return names[index] if index < len(names) else ""
