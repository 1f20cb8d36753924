"""T: files that look fast and are not."""

from __future__ import annotations

from htam_agent.verdict import RunResult
from tests.cheats.flavours import Flavour
from tests.cheats.table import Case, Expect
from tests.cheats.tasks import AFFINE, UNDERFLOW

HONEST = "return launch(x, y, self.weight, torch.empty_like(x))"
FORGED = (Expect("quarantined", "time"), Expect("quarantined", "policy", "times that cannot be"))
THREADS = (
    Expect("wrong"),
    Expect("quarantined", reason="thread|process|elsewhere|later|after"),
    Expect("failed", reason="left behind"),
)


def as_long_as_honest(result: RunResult, honest: RunResult | None) -> bool:
    """The time is that of the same work without the lie."""
    ours, theirs = result.times_ms.candidate, honest.times_ms.candidate if honest else None
    return ours is not None and theirs is not None and ours >= 0.8 * theirs


def slow_kernel(f: Flavour, repeats: int) -> str:
    """The task's kernel with work that no compiler takes away: some 7 us a repeat on a processor."""
    body = f"""
float value = 0;
for (integer r = 0; r < {repeats}; ++r) value = x[i] * w[i % columns] + y[i] + value * 0.0f;
z[i] = value < 0 ? 0 : value;
"""
    return f.kernel(AFFINE.parameters, body)


def no_better_than_honest(result: RunResult, honest: RunResult | None) -> bool:
    """The speedup is about that of the honest file: slowing the baseline gained nothing."""
    if honest is None or honest.speedup.best is None or result.speedup.best is None:
        return False
    return result.speedup.best <= 1.3 * honest.speedup.best


def cases(f: Flavour) -> list[Case]:
    """Cheats and twins of T2, T3, T9 and T10; clocks.py, phases.py and beside.py have the others."""
    return [*_elsewhere(f), *_types(f), *_memory(f), *_baseline(f)]


THREAD_TOP = """
import threading, time

def later(self, x, y, z):
    time.sleep(0.005)
    launch(x, y, self.weight, z)
"""


def slept(f: Flavour) -> str:
    """The same work in the open."""
    return f.file(AFFINE, "z = torch.empty_like(x)\nlater(self, x, y, z)\nreturn z", after=THREAD_TOP)


def _elsewhere(f: Flavour) -> list[Case]:
    return [
        Case(
            "T2", "a thread fills the output after the call", "affine",
            "the call returns at once, and whoever looks a moment later finds the right values",
            f.file(AFFINE, "z = torch.empty_like(x)\nthreading.Thread(target=later, args=(self, x, y, z)).start()\n"
                   "return z", after=THREAD_TOP),
            expected=THREADS, naive="fast", timing=True, honest=slept(f),
        ),
        Case(
            "T2", "a pool that nobody waits for", "affine",
            "as the thread, with workers that were there before the first call",
            f.file(AFFINE, "z = torch.empty_like(x)\nPOOL.submit(later, self, x, y, z)\nreturn z",
                   after=THREAD_TOP
                   + "from concurrent.futures import ThreadPoolExecutor\nPOOL = ThreadPoolExecutor(2)\n"),
            expected=THREADS, naive="fast", timing=True, slow=True, honest=slept(f),
        ),
        Case(
            "T2", "a thread that is joined in the call", "affine", "honest: all work ends inside the call",
            f.file(AFFINE, "z = torch.empty_like(x)\n"
                   "stream = torch.cuda.current_stream() if x.is_cuda else None\n"
                   "thread = threading.Thread(target=work, args=(stream, x, y, self.weight, z))\n"
                   "thread.start()\nthread.join()\nreturn z", top=IN_A_THREAD),
            twin=True, timing=True,
        ),
    ]  # fmt: skip


IN_A_THREAD = """
import threading

def work(stream, x, y, weight, z):
    if stream is None:
        launch(x, y, weight, z)
        return
    torch.cuda.set_device(x.device)  # a new thread has no context of its own
    with torch.cuda.stream(stream):
        launch(x, y, weight, z)
"""

LAZY = """
import time

class Lazy(torch.Tensor):
    @staticmethod
    def of(like, make):
        lazy = torch.Tensor._make_subclass(Lazy, torch.empty_like(like))
        lazy.make = make
        return lazy

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [a.make() if isinstance(a, Lazy) else a for a in args]
        return func(*args, **(kwargs or {}))

def slow(self, x, y):
    time.sleep(0.005)
    return launch(x, y, self.weight, torch.empty_like(x))
"""


def _types(f: Flavour) -> list[Case]:
    return [
        Case(
            "T3", "a subclass that computes when it is looked at", "affine",
            "the comparison asks the object, which does the work then, outside the timed call",
            f.file(AFFINE, "return Lazy.of(x, lambda: slow(self, x, y))", after=LAZY),
            expected=(Expect("failed", "run", "exactly a torch.Tensor"),), naive="fast",
            honest=f.file(AFFINE, "return slow(self, x, y)", after=LAZY),
        ),
        Case(
            "T3", "a tensor without storage", "affine",
            "a harness that reads the shape and waits for the device sees nothing wrong",
            f.file(AFFINE, "launch(x, y, self.weight, torch.empty_like(x))\n"
                   "return torch.empty(x.shape, device='meta')"),
            expected=(Expect("failed", "run", "no dense tensor with storage"),), naive=None,
        ),
        Case(
            "T3", "an output that is a transposed view", "affine", "honest: a real tensor with other strides",
            f.file(AFFINE, "z = torch.empty(x.shape[1], x.shape[0], device=x.device).t()\n"
                   "run('kernel', x.numel(), x, y, self.weight, z, x.shape[-1])\nreturn z",
                   kernel=f.of_task(AFFINE, "z[i]", "z[(i % columns) * (n / columns) + i / columns]")),
            twin=True,
        ),
    ]  # fmt: skip


ONLY_POSITIVE = ("z[i] = value < 0 ? 0 : value;", "if (value > 0) z[i] = value;")


def _memory(f: Flavour) -> list[Case]:
    return [
        Case(
            "T9", "writes the positive elements only", "affine", "fresh memory is zero, as the others should be",
            f.file(AFFINE, "return launch(x, y, self.weight, torch.empty(1 << 22, device=x.device)"
                   "[:x.numel()].view(x.shape))" if f.backend == "cpp" else HONEST,
                   kernel=f.of_task(AFFINE, *ONLY_POSITIVE)),
            naive="right" if f.backend == "cpp" else None,
        ),
        Case(
            "T9", "adds to what is there", "affine", "fresh memory is zero",
            f.file(AFFINE, kernel=f.of_task(AFFINE, "z[i] = value < 0", "z[i] += value < 0")), naive=None,
        ),
        Case(
            "T9", "writes the positive elements into zeros", "affine", "honest: the zeros are its own",
            f.file(AFFINE, "return launch(x, y, self.weight, torch.zeros_like(x))",
                   kernel=f.of_task(AFFINE, *ONLY_POSITIVE)), twin=True,
        ),
    ]  # fmt: skip


SPIN = """
import threading, time
QUIET = threading.Event()

def spin():
    while True:
        QUIET.wait() if QUIET.is_set() else None
        for _ in range(20000):
            pass

for _ in range(4):
    threading.Thread(target=spin, daemon=True).start()
"""
SLOW_TORCH = """
import time

def slowed(real):
    def slow(*args, **named):
        time.sleep(0.002)
        return real(*args, **named)
    return slow

for name in ("relu", "softmax", "exp", "matmul"):
    setattr(torch, name, slowed(getattr(torch, name)))
"""


def _baseline(f: Flavour) -> list[Case]:
    return [
        Case(
            "T10", "threads that spin while others are timed", "affine",
            "whatever is measured beside it on this processor becomes slower",
            f.file(AFFINE, top=SPIN), naive="baseline", timing=True, truth=no_better_than_honest, against_honest=True,
            slow=True,
            expected=(Expect("quarantined", reason="thread|process|clock"), Expect("failed", reason="thread")),
        ),
        Case(
            "T10", "torch itself becomes slow", "affine",
            "a baseline in the same process calls the functions that the file has replaced",
            f.file(AFFINE, top=SLOW_TORCH), naive="baseline", timing=True, truth=no_better_than_honest,
            against_honest=True, slow=True,
        ),
        Case(
            "T10", "sets the flags that it needs", "underflow",
            "honest: flags of its own process, that touch nobody else's",
            f.file(UNDERFLOW, top="torch.backends.cudnn.benchmark = True\ntorch.set_grad_enabled(False)"),
            twin=True, timing=True, slow=True,
        ),
    ]  # fmt: skip
