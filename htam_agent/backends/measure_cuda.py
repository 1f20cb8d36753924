"""Measures what a GPU reaches: copy, multiply-add, the cost of a launch. Runs in a child process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from htam_agent.backends import nvml
from htam_agent.backends.base import DefaultLimits
from htam_agent.errors import WorkerError
from htam_agent.verdict import Ceilings, DeviceFacts
from htam_agent.words import Record

LARGE_BYTES = 2 << 30
"""Bytes of the copy's source: far beyond any second-level cache."""
CHAINS = 8
ROUNDS = 4096

SOURCE = f"""
extern "C" __global__ void copy(float4* __restrict__ to, const float4* __restrict__ from, long long count) {{
  // Four loads are in flight before the first store.
  long long base = (long long)blockIdx.x * blockDim.x * 4 + threadIdx.x;
  float4 held[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {{
    long long i = base + (long long)k * blockDim.x;
    if (i < count) held[k] = __ldcs(from + i);
  }}
#pragma unroll
  for (int k = 0; k < 4; ++k) {{
    long long i = base + (long long)k * blockDim.x;
    if (i < count) __stcs(to + i, held[k]);
  }}
}}
extern "C" __global__ void multiply_add(float* to, float factor, float term) {{
  float chain[{CHAINS}];
#pragma unroll
  for (int k = 0; k < {CHAINS}; ++k) chain[k] = threadIdx.x + k;
#pragma unroll 16
  for (int round = 0; round < {ROUNDS}; ++round) {{
#pragma unroll
    for (int k = 0; k < {CHAINS}; ++k) chain[k] = fmaf(chain[k], factor, term);
  }}
  float total = 0.0f;
#pragma unroll
  for (int k = 0; k < {CHAINS}; ++k) total += chain[k];
  // Never true for the factor that is passed; it keeps the loop.
  if (total == 12345.678f) to[0] = total;
}}
extern "C" __global__ void empty() {{}}
"""

# argv: cubin, device index, bytes of the copy, multiprocessors, chains * rounds.
CHILD = """
import ctypes, json, sys
from pathlib import Path
from cuda.bindings import driver
def call(result):
    error, *values = result
    if error:
        raise SystemExit(f"{error.name} in a measuring call")
    return values[0] if values else None
path, device, size, multiprocessors, work = sys.argv[1], *(int(text) for text in sys.argv[2:])
call(driver.cuInit(0))
handle = call(driver.cuDeviceGet(device))
call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(handle))))
image = Path(path).read_bytes()
buffer = ctypes.create_string_buffer(image, len(image))
module = call(driver.cuModuleLoadData(ctypes.addressof(buffer)))
copy, multiply_add, empty = (call(driver.cuModuleGetFunction(module, name))
                             for name in (b"copy", b"multiply_add", b"empty"))
begin, end = call(driver.cuEventCreate(0)), call(driver.cuEventCreate(0))
def launch(kernel, grid, block, *values):
    array = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
    call(driver.cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, 0, 0, ctypes.addressof(array), 0))
def best(action, repeats):
    seconds = []
    for repeat in range(repeats + 2):
        # The device is kept busy while the host queues what follows, so that the window holds device time alone.
        call(driver.cuMemsetD8Async(target, 0, size, 0))
        call(driver.cuEventRecord(begin, 0)); action(); call(driver.cuEventRecord(end, 0))
        call(driver.cuEventSynchronize(end))
        seconds.append(call(driver.cuEventElapsedTime(begin, end)) / 1e3)
    return min(seconds[2:])
source, target = int(call(driver.cuMemAlloc(size))), int(call(driver.cuMemAlloc(size)))
call(driver.cuMemsetD8(source, 1, size))
count = size // 16
arguments = (ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_longlong(count))
by_kernel = best(lambda: launch(copy, -(-count // 2048), 512, *arguments), 12)
by_driver = best(lambda: call(driver.cuMemcpyDtoDAsync(target, source, size, 0)), 12)
blocks, threads = multiprocessors * 16, 256
numbers = (ctypes.c_void_p(target), ctypes.c_float(0.999), ctypes.c_float(1e-4))
flops = 2.0 * work * blocks * threads / best(lambda: launch(multiply_add, blocks, threads, *numbers), 12)
print(json.dumps({"copy_rate": 2.0 * size / min(by_kernel, by_driver), "operations": flops,
                  "launch": best(lambda: launch(empty, 1, 32), 50)}))
"""

# argv: device index. A child of its own: torch takes seconds to load, and brings a context of its own.
PRODUCT_CHILD = """
import json, sys
import torch
torch.cuda.set_device(int(sys.argv[1]))
def rate(dtype, size):
    left, right = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    made = torch.empty_like(left)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best = float("inf")
    for repeat in range(13):
        begin.record(); torch.mm(left, right, out=made); end.record(); end.synchronize()
        if repeat >= 3:
            best = min(best, begin.elapsed_time(end))
    return 2.0 * size ** 3 / (best / 1e3)
torch.backends.cuda.matmul.allow_tf32 = True
print(json.dumps({name: max(rate(dtype, size) for size in (4096, 8192))
                  for name, dtype in (("tf32", torch.float32), ("bf16", torch.bfloat16))}))
"""
"""Normal values: zeros would draw less power and run at a higher clock than any real product."""


class _Products(Record):
    tf32: float
    bf16: float


class _Figures(Record):
    copy_rate: float
    operations: float
    launch: float


def measure(facts: DeviceFacts, device: int) -> Ceilings:
    """Ceilings of the device with this index. Raises WorkerError when the measuring program fails."""
    from htam_agent.backends.cuda import CudaBackend

    size = min(LARGE_BYTES, facts.memory_bytes // 8) // 16 * 16
    with tempfile.TemporaryDirectory(prefix="htam-ceilings-") as name:
        built = CudaBackend(facts.architecture).build(SOURCE, Path(name), DefaultLimits())
        if not built.ok:
            raise WorkerError(f"The kernels that measure the ceilings do not build: {built.log}", "Run `htam doctor`.")
        arguments = [built.binary, str(device), str(size), str(facts.threads), str(CHAINS * ROUNDS)]
        figures = _Figures.model_validate_json(_run(CHILD, arguments))
    products = _Products.model_validate_json(_run(PRODUCT_CHILD, [str(device)]))
    return Ceilings(
        copy_bytes_per_second=figures.copy_rate,
        fp32_operations_per_second=figures.operations,
        launch_seconds=figures.launch,
        tf32_operations_per_second=products.tf32,
        bf16_operations_per_second=products.bf16,
        dram_bytes_per_second=nvml.dram_bytes_per_second(device),
    )


def _run(program: str, arguments: list[str]) -> str:
    """The one line of JSON that a measuring program prints. Raises WorkerError when it fails."""
    command = [sys.executable, "-I", "-c", program, *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired as error:
        raise WorkerError("Measuring the GPU's ceilings took more than 120 s.", "Look at `nvidia-smi`.") from error
    if result.returncode:
        raise WorkerError(
            f"Measuring the GPU's ceilings failed (status {result.returncode}): {result.stderr.strip()[-300:]}",
            "Free the GPU's memory and look at `nvidia-smi`.",
        )
    return result.stdout.strip().rpartition("\n")[2]
