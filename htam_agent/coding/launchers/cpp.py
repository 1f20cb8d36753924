"""Builds a C++ source with g++ and loads it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

CPP_FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-fno-math-errno",
    "-fno-trapping-math",
)


@functools.cache
def load_kernels(source: str) -> ctypes.CDLL:
    """The extern "C" functions of a C++ source: prebuilt in HTAM_KERNEL_DIR, kept from before, or built by g++ now."""
    name = hashlib.sha256(source.encode() + b"\0" + b"cpp").hexdigest()[:32] + ".so"
    ready = Path(os.environ.get("HTAM_KERNEL_DIR", "/nonexistent")) / name
    return ctypes.CDLL(str(ready if ready.is_file() else _build(source)))


def _build(source: str) -> Path:
    """Builds once for each source, set of flags and processor."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "htam-kernels"
    cache.mkdir(parents=True, exist_ok=True)
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    library = cache / (hashlib.sha256("\0".join([source, processor, *CPP_FLAGS]).encode()).hexdigest()[:32] + ".so")
    if not library.is_file():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            code, part = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
            code.write_text(source, encoding="utf-8")
            command = ["g++", *CPP_FLAGS, str(code), "-o", str(part)]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise RuntimeError(f"g++ does not build this kernel:\n{result.stderr[:4000]}")
            os.replace(part, library)
    return library
