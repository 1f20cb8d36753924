"""Launcher: builds CUDA text with NVRTC once for each content, and launches its kernels on PyTorch's current stream."""

import ctypes
import hashlib
import os
import tempfile
from pathlib import Path

import torch

Size = tuple[int, int, int]
LAUNCHES: list[tuple[str, Size, Size, int]] = []  # kernel, grid, block, dynamic shared bytes, noted once for each form


class CudaKernels:
    """The kernels of one CUDA source. Arguments are tensors, int (a C int), float (a C float) or ctypes values."""

    def __init__(self, source: str) -> None:
        self.source, self.driver = source, ctypes.CDLL(None)  # the driver itself is loaded at the first launch
        self.loaded: dict[int, tuple[ctypes.c_void_p, ctypes.c_void_p]] = {}
        self.functions: dict[tuple[int, str, int, int], ctypes.c_void_p] = {}

    def launch(
        self, name: str, grid: Size, block: Size, arguments: list[object], shared: int = 0, cluster: int = 1
    ) -> None:
        """One launch: `shared` bytes of dynamic shared memory, `cluster` the size that the kernel itself declares."""
        device = next((item.get_device() for item in arguments if isinstance(item, torch.Tensor)), -1)
        if device < 0:
            raise ValueError(f"{name} needs a CUDA tensor as its first tensor argument")
        if device != torch.cuda.current_device():
            with torch.cuda.device(device):
                self.launch(name, grid, block, arguments, shared, cluster)
            return
        function = self.function(name, shared, cluster)
        values = [as_c(item) for item in arguments]
        places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = self.driver.cuLaunchKernel(function, *grid, *block, shared, stream, places, None)
        if status == 201:  # a thread that has no current context yet: PyTorch's own is the right one
            self.check(self.driver.cuCtxSetCurrent(self.loaded[device][0]), "cuCtxSetCurrent")
            status = self.driver.cuLaunchKernel(function, *grid, *block, shared, stream, places, None)
        self.check(status, f"launch of {name} with grid {grid}, block {block}, {shared} bytes shared")
        if (name, grid, block, shared) not in LAUNCHES:
            LAUNCHES.append((name, grid, block, shared))

    def resident(self, name: str, threads: int, shared: int = 0, cluster: int = 1) -> int:
        """How many blocks of a kernel the current device holds at once."""
        function, count = self.function(name, shared, cluster), ctypes.c_int()
        if cluster == 1:
            query, room = self.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor, ctypes.c_size_t(shared)
            self.check(query(ctypes.byref(count), function, threads, room), "occupancy query")
            return max(1, count.value) * torch.cuda.get_device_properties().multi_processor_count
        # A CUlaunchAttribute (cluster dimension) and a CUlaunchConfig that points to it, word by word.
        attribute = (ctypes.c_uint * 18)(4, 0, cluster, 1, 1)
        place = ctypes.addressof(attribute)
        form = (ctypes.c_uint * 14)(cluster, 1, 1, threads, 1, 1, shared, 0, 0, 0, place & 0xFFFFFFFF, place >> 32, 1)
        self.check(self.driver.cuOccupancyMaxActiveClusters(ctypes.byref(count), function, form), "cluster occupancy")
        return max(1, count.value) * cluster

    def function(self, name: str, shared: int, cluster: int) -> ctypes.c_void_p:
        """A kernel on the current device, allowed to use that much shared memory and that large a cluster."""
        device = torch.cuda.current_device()
        if (device, name, shared, cluster) in self.functions:
            return self.functions[device, name, shared, cluster]
        if device not in self.loaded:
            self.driver = ctypes.CDLL("libcuda.so.1")
            torch.empty(1, device=f"cuda:{device}")  # makes PyTorch's primary context current
            context, module = ctypes.c_void_p(), ctypes.c_void_p()
            self.check(self.driver.cuCtxGetCurrent(ctypes.byref(context)), "cuCtxGetCurrent")
            binary = cubin(self.source, "sm_{}{}".format(*torch.cuda.get_device_capability(device)))
            self.check(self.driver.cuModuleLoadData(ctypes.byref(module), binary), "cuModuleLoadData")
            self.loaded[device] = context, module
        found = ctypes.c_void_p()
        self.check(self.driver.cuModuleGetFunction(ctypes.byref(found), self.loaded[device][1], name.encode()), name)
        # 8: most dynamic shared memory, 9: share of the cache used for it, 14: clusters beyond the portable 8 blocks
        for attribute, value, wanted in ((8, shared, shared > 49152), (9, 100, shared > 49152), (14, 1, cluster > 8)):
            if wanted:
                self.check(self.driver.cuFuncSetAttribute(found, attribute, value), f"attribute {attribute} of {name}")
        self.functions[device, name, shared, cluster] = found
        return found

    def check(self, status: int, what: str) -> None:
        if status:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"CUDA: {what} failed: {(text.value or b'unknown error').decode()} ({status})")


def as_c(item: object) -> "ctypes._CDataType":
    """An argument as the C value whose address the driver gets."""
    if isinstance(item, torch.Tensor):
        return ctypes.c_uint64(item.data_ptr())
    if isinstance(item, int) and not -(2**31) <= item < 2**31:
        raise OverflowError(f"{item} does not fit a C int: pass ctypes.c_longlong")
    if not isinstance(item, int | float | ctypes._SimpleCData):
        raise TypeError(f"a kernel takes tensors, numbers and ctypes values, not {type(item).__name__}")
    return ctypes.c_int(item) if isinstance(item, int) else ctypes.c_float(item) if isinstance(item, float) else item


def cubin(source: str, target: str) -> bytes:
    """From HTAM_KERNEL_DIR, from the cache, or compiled by NVRTC, which lies on the loader's path or beside PyTorch."""
    name = hashlib.sha256(source.encode() + b"\0" + target.encode()).hexdigest()[:32] + ".cubin"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "htam-kernels"
    for file in (Path(os.environ.get("HTAM_KERNEL_DIR", "/nonexistent")) / name, cache / name):
        if file.is_file():
            return file.read_bytes()
    beside = sorted(Path(torch.__file__).parent.parent.glob("nvidia/*/lib/libnvrtc.so.1[23]"), reverse=True)
    nvrtc, program, size = None, ctypes.c_void_p(), ctypes.c_size_t()
    for place in ("libnvrtc.so.13", "libnvrtc.so.12", *map(str, beside)):
        try:
            nvrtc = nvrtc or ctypes.CDLL(place)
        except OSError:
            continue
    if nvrtc is None or nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None):
        raise RuntimeError("NVRTC (libnvrtc.so.13 or .12) is not there or does not work: pip install nvidia-cuda-nvrtc")
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture={target}".encode(), b"--std=c++17")
    failed = nvrtc.nvrtcCompileProgram(program, 2, options)
    kind = "ProgramLog" if failed else "CUBIN"
    getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    answer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{kind}")(program, answer)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(f"NVRTC could not compile this kernel:\n{answer.value.decode(errors='replace')[-4000:]}")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache, delete=False) as part:
        part.write(answer.raw)
    os.replace(part.name, cache / name)
    return answer.raw
