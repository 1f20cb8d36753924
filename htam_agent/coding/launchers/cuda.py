"""Builds a CUDA source with NVRTC and launches its kernels through the CUDA driver."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
import tempfile
from pathlib import Path

import torch

LAUNCHES: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = []


class Kernels:
    """The extern "C" kernels of one CUDA source."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._modules: dict[int, ctypes.c_void_p] = {}
        self._functions: dict[tuple[int, str, int], ctypes.c_void_p] = {}

    def launch(
        self, name: str, grid: tuple[int, ...], block: tuple[int, ...], *arguments: object, shared: int = 0
    ) -> None:
        """Launch on torch's current stream. Tensors become pointers, int `long long`, float `float`, bool `int`."""
        grid, block = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
        device = torch.cuda.current_device()
        stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
        key = (device, name, shared)
        if key not in self._functions:
            self._functions[key] = self._load(*key)
            LAUNCHES.append((name, grid, block, shared))
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        sizes = [ctypes.c_uint(extent) for extent in (*grid, *block, shared)]
        _call("cuLaunchKernel", self._functions[key], *sizes, stream, pointers, None)

    def _load(self, device: int, name: str, shared: int) -> ctypes.c_void_p:
        context = ctypes.c_void_p()
        _call("cuCtxGetCurrent", ctypes.byref(context))
        if not context.value:  # a thread that has not used CUDA yet
            _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            _call("cuCtxSetCurrent", context)
        if device not in self._modules:
            major, minor = torch.cuda.get_device_capability(device)
            image = ctypes.create_string_buffer(_binary(self._source, f"sm_{major}{minor}"))
            self._modules[device] = ctypes.c_void_p()
            _call("cuModuleLoadData", ctypes.byref(self._modules[device]), image)
        function = ctypes.c_void_p()
        _call("cuModuleGetFunction", ctypes.byref(function), self._modules[device], name.encode())
        if shared > 48 * 1024:
            _call("cuFuncSetAttribute", function, 8, shared)  # the most dynamic shared memory
        return function


load_kernels = functools.cache(Kernels)


def _value(argument: object) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_longlong | ctypes.c_float:
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, bool):
        return ctypes.c_int(argument)
    if isinstance(argument, int):
        return ctypes.c_longlong(argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    raise TypeError(f"a kernel takes tensors, int, float and bool, not {type(argument).__name__}")


def _call(name: str, *arguments: object) -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    error = getattr(driver, name)(*arguments)
    if error:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(error, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()} ({error})")


def _binary(source: str, architecture: str) -> bytes:
    """The cubin: prebuilt in HTAM_KERNEL_DIR, kept from before, or built by NVRTC now."""
    name = hashlib.sha256(source.encode() + b"\0" + architecture.encode()).hexdigest()[:32] + ".cubin"
    ready = Path(os.environ.get("HTAM_KERNEL_DIR", "/nonexistent")) / name
    if ready.is_file():
        return ready.read_bytes()
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "htam-kernels" / name
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as part:
            part.write(_compile(source, architecture))
        os.replace(part.name, kept)
    return kept.read_bytes()


def _compile(source: str, architecture: str) -> bytes:
    nvrtc, folder = _nvrtc()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = [f"--gpu-architecture={architecture}", "--std=c++17", f"--include-path={folder.parent / 'include'}"]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(program, len(options), array)
    kind = "ProgramLog" if failed else "CUBIN"
    getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{kind}")(program, buffer)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(f"NVRTC does not build this kernel:\n{buffer.value.decode()[:4000]}")
    return buffer.raw


@functools.cache
def _nvrtc() -> tuple[ctypes.CDLL, Path]:
    """NVRTC and its folder: from torch's CUDA packages, else from a toolkit."""
    folders = [Path(entry, "nvidia", name) for entry in sys.path for name in ("cu13/lib", "cuda_nvrtc/lib")]
    for folder in (*folders, Path("/usr/local/cuda/lib64")):
        for path in sorted(folder.glob("libnvrtc.so.*")):
            for builtins in folder.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path)), folder
    raise RuntimeError("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
