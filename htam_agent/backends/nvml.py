"""What NVIDIA's management library says of a GPU: clocks, power, temperature, throttling, the memory's rate.

Read only: nothing is ever set. The library is loaded at the first question, through nvidia-ml-py (BSD-3, NVIDIA's own
bindings), needs no CUDA context and starts no thread, so that the main process may ask. Where it cannot be had the
answers are None and `why_absent` says why. Source of the names and units: NVML's reference manual, sections Device
Queries and Clocks Event Reasons.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from htam_agent.backends.probe_cuda import ask_device, has_device_file
from htam_agent.verdict import GpuState

if TYPE_CHECKING:
    from types import ModuleType

INSTALL = "install the CUDA extra (pip install 'htam_agent[cuda13]'), which brings nvidia-ml-py"

REASONS = {
    0x2: "held by a clock setting",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "clocks synchronised with another GPU",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "external power brake",
    0x100: "display clock setting",
}
"""NVML's bits of why clocks are below their maximum. The idle bit (0x1) is left out: it slows no measurement."""


class Absent(Exception):
    """The library, its driver or the device cannot be had; the message is the reason."""


def snapshot(index: int) -> GpuState | None:
    """The state of the GPU with this CUDA index (among the visible ones) at this moment, about 1 ms; None where
    nothing can be read (`why_absent`). A figure that this GPU does not give is None in it."""
    try:
        library, handle = _opened(index)
    except Absent:
        return None

    def read(ask: Callable[[], int]) -> int | None:
        try:
            return int(ask())
        except library.NVMLError:
            return None

    power = read(lambda: library.nvmlDeviceGetPowerUsage(handle))
    bits = read(lambda: library.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return GpuState(
        sm_clock_mhz=read(lambda: library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM)),
        sm_clock_limit_mhz=read(lambda: library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_SM)),
        memory_clock_mhz=read(lambda: library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_MEM)),
        power_watts=None if power is None else power / 1e3,
        temperature_celsius=read(lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)),
        throttled_by=reasons_in_words(bits or 0),
    )


def unique_name(index: int) -> str:
    """The name that the driver gives this GPU alone ("GPU-...", "MIG-..."), the same in every process and container
    whatever devices it sees; empty where nothing can be read."""
    try:
        library, handle = _opened(index)
        return str(library.nvmlDeviceGetUUID(handle))
    except Absent:
        return ""
    except library.NVMLError:
        return ""


def free_memory_share(index: int) -> float | None:
    """The part of the device's memory that nobody has taken, 0 to 1; None where it cannot be read."""
    try:
        library, handle = _opened(index)
        memory = library.nvmlDeviceGetMemoryInfo(handle)
    except Absent:
        return None
    except library.NVMLError:
        return None
    return float(memory.free) / float(memory.total) if memory.total else None


def minor_number(index: int) -> int | None:
    """The number in the name of this GPU's device file (/dev/nvidia3: 3), of the whole one where it is a part of a
    divided GPU; None where nothing can be read."""
    try:
        library, handle = _opened(index)
    except Absent:
        return None
    try:
        return int(library.nvmlDeviceGetMinorNumber(handle))
    except library.NVMLError:
        pass
    try:
        whole = library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return int(library.nvmlDeviceGetMinorNumber(whole))
    except library.NVMLError:
        return None


def why_absent(index: int) -> str:
    """Why `snapshot` gives None for this device; empty when it gives a state."""
    try:
        _opened(index)
    except Absent as error:
        return str(error)
    return ""


def reasons_in_words(bits: int) -> list[str]:
    """NVML's bit mask of clock event reasons as words; bits that the table lacks are named by their value."""
    known = [words for bit, words in REASONS.items() if bits & bit]
    unknown = bits & ~(sum(REASONS) | 0x1)
    return [*known, *([f"other reasons ({unknown:#x})"] if unknown else [])]


def dram_bytes_per_second(index: int) -> float:
    """Theoretical rate of the device's memory: two transfers a clock at the memory's highest clock, over the whole
    bus. From NVML; where it is absent, from the CUDA driver's attributes; 0.0 where neither knows."""
    answer = ask_device(index)
    try:
        library, handle = _opened(index)
        megahertz = int(library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_MEM))
        bits = int(library.nvmlDeviceGetMemoryBusWidth(handle))
    except Absent:
        return answer.dram_bytes_per_second
    except library.NVMLError:
        return answer.dram_bytes_per_second
    return theoretical_bytes_per_second(megahertz * 1e6, bits) or answer.dram_bytes_per_second


def theoretical_bytes_per_second(hertz: float, bus_bits: int) -> float:
    """Double data rate over a bus of so many bits: 3201 MHz and 6144 bits give 4.917e12."""
    return 2.0 * hertz * bus_bits / 8.0


@functools.lru_cache(maxsize=16)
def _device(index: int) -> tuple[ModuleType, object] | str:
    """The library and the device's handle, or why there is none; asked once for each device."""
    if not has_device_file():
        return "this machine has no NVIDIA device file (/dev/nvidiactl)"
    try:
        import pynvml
    except ImportError:
        return f"nvidia-ml-py is not installed: {INSTALL}"
    library: ModuleType = pynvml
    try:
        library.nvmlInit()
        # By the driver's own name of it: NVML counts all devices, in another order than CUDA counts the visible ones.
        name = ask_device(index).uuid
        if not name:
            return f"the CUDA driver does not name its device {index}"
        return library, _handle(library, name)
    except library.NVMLError as error:
        return f"NVML does not answer: {error}"


def _handle(library: ModuleType, name: str) -> object:
    try:
        return library.nvmlDeviceGetHandleByUUID(name.encode())
    except library.NVMLError:
        # A part of a divided GPU has the same digits behind another word.
        return library.nvmlDeviceGetHandleByUUID(name.replace("GPU-", "MIG-", 1).encode())


def _opened(index: int) -> tuple[ModuleType, object]:
    found = _device(index)
    if isinstance(found, str):
        raise Absent(found)
    return found
