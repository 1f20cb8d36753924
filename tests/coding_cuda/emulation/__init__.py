"""CUDA device code on the CPU: a stand-in for the launcher's CudaKernels, for checking kernels without a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

if platform.machine() != "x86_64":
    pytest.skip("the emulation switches stacks in x86-64 assembly", allow_module_level=True)

HEADER = Path(__file__).parent / "cuda_emulation.h"
FLAGS = (
    "-O1", "-std=c++17", "-fPIC", "-w", "-fno-strict-aliasing",
    "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error", "-fno-omit-frame-pointer",
)  # fmt: skip
FOLDER = Path(tempfile.gettempdir()) / "htam-cuda-emulation"
RESIDENT_BLOCKS = 6
"""Blocks that the emulated device holds at once: few, so that persistent kernels really take several rows."""


class EmulationError(Exception):
    """What the emulation found: divergence, an access out of bounds, a write into an input."""


class EmulatedKernels:
    """Has `launch` and `resident` as the launcher's CudaKernels has them, for CPU tensors.

    Every tensor is copied into memory that ends (`at_end`) or begins at a protected page. `order` is the order in
    which threads run between barriers: 0 ascending, 1 descending, 2 mixed.
    """

    def __init__(self, source: str, order: int = 0, at_end: bool = True) -> None:
        self.library = ctypes.CDLL(str(built(source)))
        self.library.emulation_guarded.restype = ctypes.c_void_p
        self.order = order
        self.at_end = at_end
        self.launches: list[tuple[str, tuple[int, int, int], tuple[int, int, int], int, int]] = []
        self.barriers = self.exchanges = self.cluster_barriers = 0

    def resident(self, name: str, threads: int, shared: int = 0, cluster: int = 1) -> int:
        return max(cluster, RESIDENT_BLOCKS // cluster * cluster)

    def launch(
        self, name: str, grid: tuple[int, int, int], block: tuple[int, int, int], arguments: list[object],
        shared: int = 0, cluster: int = 1,
    ) -> None:  # fmt: skip
        """One launch. Raises EmulationError."""
        places: list[int] = []
        values: list[ctypes._SimpleCData[int]] = []
        for item in arguments:
            if isinstance(item, torch.Tensor):
                size = item.numel() * item.element_size()
                places.append(int(self.library.emulation_guarded(ctypes.c_size_t(size), int(self.at_end))))
                ctypes.memmove(places[-1], item.data_ptr(), size)
                values.append(ctypes.c_uint64(places[-1]))
            else:
                assert isinstance(item, ctypes._SimpleCData)
                places.append(0)
                values.append(item)
        packed = (ctypes.c_void_p * len(values))(*(ctypes.addressof(item) for item in values))
        function = getattr(self.library, f"emulate_{name}")
        function.restype = ctypes.c_char_p
        message = function(grid[0], block[0], cluster, ctypes.c_size_t(shared), self.order, packed)
        if message:
            raise EmulationError(f"{name}: {message.decode()}")
        for item, place in zip(arguments, places, strict=True):
            if isinstance(item, torch.Tensor):
                size = item.numel() * item.element_size()
                ctypes.memmove(item.data_ptr(), place, size)
                self.library.emulation_release(ctypes.c_void_p(place), ctypes.c_size_t(size), int(self.at_end))
        self.launches.append((name, grid, block, shared, cluster))
        counts = (ctypes.c_ulong * 3)()
        self.library.emulation_counts(counts)
        self.barriers += counts[0]
        self.exchanges += counts[1]
        self.cluster_barriers += counts[2]


def built(source: str) -> Path:
    """The emulation of a source as a shared library, built once for each content.

    Raises EmulationError with the compiler's words.
    """
    kernels = re.findall(r"__global__[^{;]*?(\w+)\s*\(\s*(?:const\s+)?\w[\w ]*\*", source)
    text = "\n".join(['#include "cuda_emulation.h"', source, *(f"EMULATE({name})" for name in kernels)])
    library = FOLDER / f"{_key(text)}.so"
    if not library.is_file():
        with tempfile.TemporaryDirectory(dir=FOLDER if FOLDER.is_dir() else None) as folder:
            file = Path(folder) / "kernel.cpp"
            file.write_text(text)
            _compile([f"-I{_precompiled()}", str(file), "-shared", "-o", f"{folder}/kernel.so"])
            _publish(Path(f"{folder}/kernel.so"), library)
    return library


def _precompiled() -> Path:
    """A folder with the header and its precompiled form, which halves the time of every kernel."""
    home = FOLDER / _key("header")
    if not home.is_dir():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            part = Path(folder) / "include"
            part.mkdir()
            shutil.copy(HEADER, part)
            _compile(["-x", "c++-header", str(part / HEADER.name), "-o", str(part / f"{HEADER.name}.gch")])
            try:
                part.rename(home)
            except OSError:  # another process was first
                assert home.is_dir()
    return home


def _compile(arguments: list[str]) -> None:
    run = subprocess.run(["g++", *FLAGS, *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        raise EmulationError(f"g++ cannot build the kernel:\n{run.stderr[:4000]}")


def _key(text: str) -> str:
    return hashlib.sha256("\0".join([HEADER.read_text(), text, *FLAGS]).encode()).hexdigest()[:24]


def _publish(part: Path, target: Path) -> None:
    """Atomic also across file systems."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    beside = target.with_suffix(f".{os.getpid()}")
    shutil.move(part, beside)
    os.replace(beside, target)
