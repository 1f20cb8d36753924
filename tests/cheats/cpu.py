"""Cheats and twins that only a processor has: native threads, forked processes, numpy, stale pointers of C++."""

from __future__ import annotations

from tests.cheats.falling_back import NUMPY
from tests.cheats.flavours import CPP
from tests.cheats.table import OWN_WORK, Case, Expect
from tests.cheats.tasks import AFFINE
from tests.cheats.timing import THREADS, no_better_than_honest

HONEST = "return launch(x, y, self.weight, torch.empty_like(x))"

NATIVE_THREAD = """
#include <thread>
#include <chrono>
static void work(const float* x, const float* y, const float* w, float* z, integer columns, integer n) {{
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  for (integer i = 0; i < n; ++i) {{
    float value = x[i] * w[i % columns] + y[i];
    z[i] = value < 0 ? 0 : value;
  }}
}}
extern "C" void kernel(const float* x, const float* y, const float* w, float* z, integer columns, integer n) {{
  std::thread worker(work, x, y, w, z, columns, n);
  worker.{end}();
}}
"""
STALE = """
extern "C" void kernel(const float* x, const float* y, const float* w, float* z, integer columns, integer n) {
  static const float *first_x = x, *first_y = y;
  for (integer i = 0; i < n; ++i) {
    float value = first_x[i] * w[i % columns] + first_y[i];
    z[i] = value < 0 ? 0 : value;
  }
}
"""
OPENMP = """
extern "C" void kernel(const float* x, const float* y, const float* w, float* z, integer columns, integer n) {
  #pragma omp parallel for num_threads(2)
  for (integer i = 0; i < n; ++i) {
    float value = x[i] * w[i % columns] + y[i];
    z[i] = value < 0 ? 0 : value;
  }
}
"""
FORKED = """
import mmap, time
SPACE = mmap.mmap(-1, 1 << 20)
"""
FORKED_FORWARD = """
z = torch.frombuffer(SPACE, dtype=torch.float32, count=x.numel()).view(x.shape)
z.fill_(float("nan"))
if os.fork() == 0:
    time.sleep(0.005)
    launch(x, y, self.weight, z)
    os._exit(0)
return z
"""
BURNER = """
import signal
if os.fork() == 0:
    for _ in range(3):
        os.fork()
    signal.alarm(10)
    while True:
        pass
"""


def cases() -> list[Case]:
    """Rows for the backend cpp alone."""
    return [
        Case("T1", "work on a native thread that nobody joins", "affine",
             "the call returns at once; the processor's side stream is a thread",
             CPP.file(AFFINE, kernel=NATIVE_THREAD.format(end="detach")), expected=THREADS, naive=None, timing=True,
             honest=CPP.file(AFFINE, kernel=NATIVE_THREAD.format(end="join"))),
        Case("T1", "work on a native thread that is joined", "affine", "honest",
             CPP.file(AFFINE, kernel=NATIVE_THREAD.format(end="join")), twin=True, timing=True),
        Case("T1", "a team of OpenMP threads", "affine", "honest: threads stay in their pool after the call",
             CPP.file(AFFINE, kernel=OPENMP), twin=True, timing=True),
        Case("T2", "a process fills the output after the call", "affine", "the call returns at once",
             CPP.file(AFFINE, FORKED_FORWARD, top=FORKED), expected=THREADS, naive=None, timing=True,
             honest=CPP.file(AFFINE, kernel=NATIVE_THREAD.format(end="join"))),
        Case("T10", "processes that spin while others are timed", "affine",
             "whatever is measured on this machine becomes slower",
             CPP.file(AFFINE, top=BURNER), naive=None, timing=True, slow=True, truth=no_better_than_honest,
             against_honest=True,
             expected=(Expect("quarantined", reason="process"), Expect("failed", reason="process"))),
        Case("S8", "remembers the addresses of its first call", "affine",
             "the same memory comes again: what was read there first is read again",
             CPP.file(AFFINE, kernel=STALE), naive=None),
        Case("F3", "numpy by a name that is put together", "affine", "torch is not asked at all",
             CPP.file(AFFINE, "run('kernel', 1, x, y, self.weight, torch.empty_like(x), x.shape[-1])\n"
                      + NUMPY.strip()),
             expected=OWN_WORK),
    ]  # fmt: skip
