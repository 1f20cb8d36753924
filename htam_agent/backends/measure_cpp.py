"""Measures what this machine's processor reaches: copy, multiply-add, an empty parallel region.

The program is built with the flags that candidates get and runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.backends.base import DefaultLimits
from htam_agent.errors import WorkerError
from htam_agent.verdict import CacheCeiling, Ceilings
from htam_agent.words import Record

if TYPE_CHECKING:
    from htam_agent.backends.cpp import CppBackend

LARGE_BYTES = 256 << 20
"""Bytes of the large copy's source; less on a machine with little memory."""

SOURCE = r"""
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <omp.h>

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Best seconds of one parallel copy of `count` floats. Both ways of storing are tried, since which one is faster
// depends on the processor: a plain loop goes through the cache, memcpy of a large block mostly round it.
extern "C" double copy_seconds(long count, int threads, int repeats) {
  float* from = static_cast<float*>(std::aligned_alloc(4096, count * sizeof(float)));
  float* to = static_cast<float*>(std::aligned_alloc(4096, count * sizeof(float)));
  if (!from || !to) { std::free(from); std::free(to); return -1.0; }
  double best = 1e30;
  for (int repeat = 0; repeat < 2 * repeats + 2; ++repeat) {
    double started = now();
    #pragma omp parallel num_threads(threads)
    {
      long share = count / omp_get_num_threads();
      long begin = omp_get_thread_num() * share;
      if (repeat == 0) {
        for (long i = begin; i < begin + share; ++i) { from[i] = float(i); to[i] = 0.0f; }
      } else if (repeat % 2) {
        std::memcpy(to + begin, from + begin, share * sizeof(float));
      } else {
        #pragma omp simd
        for (long i = begin; i < begin + share; ++i) to[i] = from[i] + 1.0f;
      }
    }
    double seconds = now() - started;
    if (repeat > 1 && seconds < best) best = seconds;
  }
  volatile float keep = to[count / 2];
  (void)keep;
  std::free(from);
  std::free(to);
  return best;
}

// Floating-point operations per second of independent chains of multiply-adds (two for each).
extern "C" double operations_per_second(int threads, int repeats) {
  const int lanes = 256;
  const long rounds = 400000;
  double best = 1e30;
  volatile float keep = 0.0f;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    double started = now();
    float total = 0.0f;
    #pragma omp parallel num_threads(threads) reduction(+ : total)
    {
      alignas(64) float chain[lanes];
      for (int lane = 0; lane < lanes; ++lane) chain[lane] = 0.5f + 1e-3f * lane;
      for (long round = 0; round < rounds; ++round) {
        #pragma omp simd
        for (int lane = 0; lane < lanes; ++lane) chain[lane] = std::fma(chain[lane], 0.999f, 1e-4f);
      }
      for (int lane = 0; lane < lanes; ++lane) total += chain[lane];
    }
    double seconds = now() - started;
    keep = total;
    if (seconds < best) best = seconds;
  }
  (void)keep;
  return 2.0 * lanes * rounds * threads / best;
}

// Seconds of an empty parallel region: the best mean of many groups.
extern "C" double region_seconds(int threads) {
  double best = 1e30;
  volatile int sink = 0;
  for (int group = 0; group < 20; ++group) {
    double started = now();
    for (int call = 0; call < 50; ++call) {
      #pragma omp parallel num_threads(threads)
      { if (omp_get_thread_num() < 0) sink = 1; }
    }
    double seconds = (now() - started) / 50;
    if (seconds < best) best = seconds;
  }
  return best;
}
"""

# Runs in the measuring process: argv is the library, the threads, and the floats of each copy, the large one first.
CHILD = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
threads, large, *small = (int(text) for text in sys.argv[2:])
for name, kinds in (("copy_seconds", [ctypes.c_long, ctypes.c_int, ctypes.c_int]),
                    ("operations_per_second", [ctypes.c_int, ctypes.c_int]), ("region_seconds", [ctypes.c_int])):
    getattr(library, name).argtypes = kinds
    getattr(library, name).restype = ctypes.c_double
copies = [library.copy_seconds(large, threads, 6)] + [library.copy_seconds(count, threads, 60) for count in small]
print(json.dumps({"copies": copies, "operations": library.operations_per_second(threads, 5),
                  "region": library.region_seconds(threads)}))
"""


def measure(backend: CppBackend, threads: int) -> Ceilings:
    """Ceilings with `threads` OpenMP threads. Raises WorkerError when the measuring program fails."""
    large = min(LARGE_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16) // 4
    levels = cache_levels(threads)
    # A source and a destination of 3/8 of the cache each: both stay in it beside the stack and the program.
    small = [level * 3 // 32 for level in levels]
    with tempfile.TemporaryDirectory(prefix="htam-ceilings-") as name:
        built = backend.build(SOURCE, Path(name), DefaultLimits(build_seconds=120.0))
        if not built.ok:
            raise WorkerError(f"The program that measures the ceilings does not build: {built.log}", "Check g++.")
        figures = _run([built.binary, str(threads), *(str(count) for count in (large, *small))])
    if min(figures.copies) <= 0:
        raise WorkerError(
            f"There is not enough memory to measure a copy of {large * 4 >> 20} MB.", "Free some memory and try again."
        )
    rates = [8.0 * count / seconds for count, seconds in zip((large, *small), figures.copies, strict=True)]
    return Ceilings(
        copy_bytes_per_second=rates[0],
        fp32_operations_per_second=figures.operations,
        launch_seconds=figures.region,
        caches=[
            CacheCeiling(bytes=level, copy_bytes_per_second=rate) for level, rate in zip(levels, rates[1:], strict=True)
        ],
    )


class _Figures(Record):
    copies: list[float]
    operations: float
    region: float


def _run(arguments: list[str]) -> _Figures:
    command = [sys.executable, "-I", "-c", CHILD, *arguments]
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    except subprocess.TimeoutExpired as error:
        raise WorkerError(
            "Measuring the processor's ceilings took more than 120 s.", "Try on a quieter machine."
        ) from error
    if result.returncode != 0:
        raise WorkerError(
            f"The program that measures the ceilings failed (status {result.returncode}): {result.stderr[-500:]}",
            "Run `htam doctor`.",
        )
    return _Figures.model_validate_json(result.stdout)


def cache_levels(threads: int) -> list[int]:
    """Bytes of the second-level caches of the cores in use together, and of the third level; as far as the system says.

    What is said may be wrong on a virtual machine; the copy rate measured at that size is right all the same.
    """
    levels: dict[str, int] = {}
    for path in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level = (path / "level").read_text().strip()
            size = (path / "size").read_text().strip()
        except OSError:
            continue
        if level in ("2", "3") and size.endswith("K"):
            levels[level] = int(size[:-1]) * 1024
    found = [levels["2"] * threads] if "2" in levels else []
    return sorted({*found, *([levels["3"]] if "3" in levels else [])})
