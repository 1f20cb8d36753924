"""What the CUDA driver says of a device, asked in a child process: this process never initialises CUDA."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

from pydantic import ValidationError

from htam_agent.verdict import DeviceFacts
from htam_agent.words import Record

DRIVER_REMEDY = "Install NVIDIA's driver, or give the container access to the GPU; the backend cpp works without one."
DEVICE_FILES = ("nvidiactl", "nvidia0", "dxg", "nvhost-ctrl-gpu")
"""Entries of /dev on a server or workstation, in WSL2 and on an embedded board."""

# Prints one JSON object. Figures that a driver does not give are left out.
CHILD = """
import json, sys
try:
    from cuda.bindings import driver
    driver.cuDriverGetVersion()
except Exception as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
    raise SystemExit(0)
def call(result):
    error, *values = result
    if error:
        code, text = driver.cuGetErrorString(error)
        print(json.dumps({"error": (text or b"").decode() or str(error)}))
        raise SystemExit(0)
    return values[0] if values else None
call(driver.cuInit(0))
wanted = int(sys.argv[1])
count = call(driver.cuDeviceGetCount())
if wanted >= count:
    print(json.dumps({"error": f"device {wanted} was asked for and {count} are visible"}))
    raise SystemExit(0)
device = call(driver.cuDeviceGet(wanted))
def attribute(name):
    error, value = driver.cuDeviceGetAttribute(
        getattr(driver.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_" + name), device)
    return 0 if error else int(value)
error, uuid = driver.cuDeviceGetUuid(device)
digits = "" if error else bytes(uuid.bytes).hex()
uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])) if digits else ""
name = call(driver.cuDeviceGetName(256, device)).split(b"\\0")[0].decode()
print(json.dumps({
    "name": name, "major": attribute("COMPUTE_CAPABILITY_MAJOR"), "minor": attribute("COMPUTE_CAPABILITY_MINOR"),
    "multiprocessors": attribute("MULTIPROCESSOR_COUNT"), "memory": int(call(driver.cuDeviceTotalMem(device))),
    "memory_clock_khz": attribute("MEMORY_CLOCK_RATE"), "bus_bits": attribute("GLOBAL_MEMORY_BUS_WIDTH"),
    "clock_khz": attribute("CLOCK_RATE"), "l2": attribute("L2_CACHE_SIZE"),
    "uuid": uuid and "GPU-" + uuid, "cuda": int(call(driver.cuDriverGetVersion()))}))
"""


class DeviceAnswer(Record):
    """`facts`, or the reason why there are none and what to do."""

    facts: DeviceFacts | None = None
    uuid: str = ""
    """The driver's own name of the device, as NVML and CUDA_VISIBLE_DEVICES know it ("GPU-8c3f..."); empty for none."""
    dram_bytes_per_second: float = 0.0
    """From the driver's attributes; 0 where it does not give them. backends/nvml.py is who is asked for the rate."""
    reason: str = ""
    remedy: str = ""


class _Figures(Record):
    error: str = ""
    name: str = ""
    major: int = 0
    minor: int = 0
    multiprocessors: int = 0
    memory: int = 0
    memory_clock_khz: int = 0
    bus_bits: int = 0
    clock_khz: int = 0
    l2: int = 0
    uuid: str = ""
    cuda: int = 0


@functools.cache
def has_device_file() -> bool:
    """Whether an NVIDIA driver has made its device files here."""
    return any(Path("/dev", name).exists() for name in DEVICE_FILES)


def ask_device(device: int = 0) -> DeviceAnswer:
    """The device with this index among the visible ones; asked once in the life of a process (about 0.5 s)."""
    if not has_device_file():
        return DeviceAnswer(reason="this machine has no NVIDIA device file (/dev/nvidiactl)", remedy=DRIVER_REMEDY)
    try:
        result = subprocess.run(
            [sys.executable, "-I", "-c", CHILD, str(device)], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return DeviceAnswer(
            reason="the CUDA driver did not answer within 60 s", remedy="Look at `nvidia-smi` and the system's log."
        )
    text = (result.stdout.strip() or result.stderr.strip()).splitlines()
    try:
        figures = _Figures.model_validate_json(text[-1] if text else "")
    except ValidationError:
        return DeviceAnswer(reason=f"asking the CUDA driver failed: {' '.join(text[-1:])[:300]}", remedy=DRIVER_REMEDY)
    if figures.error:
        return DeviceAnswer(reason=f"asking the CUDA driver failed: {figures.error}", remedy=DRIVER_REMEDY)
    # Two transfers a clock (double data rate) over the whole bus.
    rate = 2.0 * figures.memory_clock_khz * 1e3 * figures.bus_bits / 8
    return DeviceAnswer(facts=_facts(figures), uuid=figures.uuid, dram_bytes_per_second=rate)


def _facts(figures: _Figures) -> DeviceFacts:
    libraries = {"cuda-driver-api": f"{figures.cuda // 1000}.{figures.cuda % 1000 // 10}"}
    if figures.l2:
        libraries["l2-bytes"] = str(figures.l2)
    if figures.clock_khz:
        libraries["clock-mhz"] = str(figures.clock_khz // 1000)
    return DeviceFacts(
        backend="cuda",
        name=figures.name,
        architecture=f"sm_{figures.major}{figures.minor}",
        driver=driver_version(),
        libraries=libraries,
        threads=figures.multiprocessors,
        memory_bytes=figures.memory,
    )


def driver_version() -> str:
    """Version of the loaded kernel module ("580.65.06"), or empty where the system does not say."""
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        return ""
