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
    """Cheats and twins of T1 to T12 that need no more than a kernel and Python."""
    return [*_elsewhere(f), *_types(f), *_clocks(f), *_phases(f), *_memory(f), *_baseline(f)]


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


SCALED = """
import time
for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns", "process_time"):
    def scaled(real=getattr(time, name), whole=name.endswith("_ns")):
        return int(real() // 1000) if whole else real() / 1000
    setattr(time, name, scaled)
"""
STANDS_STILL = SCALED.replace("int(real() // 1000) if whole else real() / 1000", "1")
SHORTER = """
def shorter(real):
    def block(*args, **named):
        answer = real(*args, **named)
        times, *rest = answer
        return ([0.6 * t for t in times], *rest)
    return block

for module in [m for n, m in list(sys.modules.items()) if n.startswith("htam_agent.evaluation")]:
    for kind in [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]:
        if "block" in vars(kind):
            kind.block = shorter(vars(kind)["block"])
"""
NATIVE = """
import gc

def zero(*args):
    return 0

class Nothing:
    def __init__(self, real):
        self.real = real
    def __getattr__(self, name):
        real = getattr(self.real, name)
        def half(*args):
            value = real(*args)
            if isinstance(value, float):
                return value / 2
            return value // 2 if isinstance(value, int) and value > 1000 else value
        return half

for module in [m for n, m in list(sys.modules.items()) if n.startswith("htam_agent.evaluation")]:
    for name, value in list(vars(module).items()):
        if isinstance(value, ctypes.CDLL):
            setattr(module, name, Nothing(value))
for found in gc.get_objects():
    if type(found).__module__.startswith("htam_agent.evaluation") and hasattr(found, "__dict__"):
        for name, value in list(vars(found).items()):
            if isinstance(value, ctypes.CDLL):
                setattr(found, name, Nothing(value))
"""
ANSWERS = """
def lying(real):
    def answer(self, order, *args, **named):
        told = real(self, order, *args, **named)
        if getattr(told, "milliseconds", None):
            told = told.model_copy(update={"milliseconds": [CLAIM for t in told.milliseconds]})
        return told
    return answer

candidate = sys.modules["htam_agent.evaluation.candidate"].Candidate
candidate.answer = lying(candidate.answer)
"""


def _clocks(f: Flavour) -> list[Case]:
    slow_text = f.file(AFFINE, kernel=slow_kernel(f, 300))

    def forged(id_: str, name: str, why: str, top: str, *, naive: bool, slow: bool = True) -> Case:
        return Case(
            id_, name, "affine", why,
            f.file(AFFINE, kernel=slow_kernel(f, 300), top="import sys\n" + top), expected=FORGED,
            timing=True, truth=as_long_as_honest, against_honest=True, honest=slow_text,
            naive="fast" if naive else None, slow=slow,
        )  # fmt: skip

    def answers(claim: str) -> str:
        return ANSWERS.replace("CLAIM", claim)

    return [
        forged("T4", "Python's clocks run slower", "a harness that asks time.perf_counter gets a thousandth", SCALED,
               naive=True, slow=False),
        forged("T4", "the statistic", "a harness that calls statistics.median gets a constant",
               "import statistics\nstatistics.median = statistics.fmean = lambda values: 1e-6\n", naive=True),
        forged("T4", "the stopwatch takes 40 % off", "too little to look impossible", SHORTER, naive=False),
        forged("T4", "the answer's times are halved", "the message itself is changed on its way", answers("0.5 * t"),
               naive=False, slow=False),
        forged("T4", "the answer's times are 10 % shorter", "a lie of the size of what honest kernels gain",
               answers("0.9 * t"), naive=False),
        forged("T4", "the answer's times are invented", "the message itself is changed on its way", answers("1e-4"),
               naive=False),
        forged("T4", "native functions of the harness give half", "a clock in C is still called through Python", NATIVE,
               naive=False),
        forged("T4", "events give a constant", "a harness that asks torch.cuda.Event.elapsed_time gets a constant",
               "import torch.cuda\ntorch.cuda.Event.elapsed_time = lambda self, other: 1e-3\n", naive=False),
        forged("T5", "a clock that stands still", "the time is 0 and every average of ratios collapses", STANDS_STILL,
               naive=True),
        forged("T5", "times of nothing", "a mean speedup over many tasks is won by one infinite ratio", answers("0.0"),
               naive=False, slow=False),
        forged("T5", "times that are no number", "a comparison with NaN is never a loss", answers("float('nan')"),
               naive=False),
        forged("T5", "times below zero", "the mean of a block becomes what one likes", answers("-t"), naive=False),
        Case(
            "T4", "a file that measures itself", "affine", "honest: its own statistics, nothing replaced",
            f.file(AFFINE, "begin = time.perf_counter()\nz = " + HONEST.removeprefix("return ")
                   + "\nSPENT.append(time.perf_counter() - begin)\ndel SPENT[:-100]\nreturn z",
                   top="import time\nSPENT = []"),
            twin=True, timing=True,
        ),
        Case(
            "T5", "a kernel that is plainly fast", "affine", "honest: the shortest call that the task allows",
            f.file(AFFINE), twin=True, timing=True,
        ),
    ]  # fmt: skip


PHASE = """
import sys

def timed():
    frame = sys._getframe(1)
    while frame:
        if any(word in frame.f_code.co_name for word in ("trial", "check", "correct")):
            return False
        frame = frame.f_back
    return True
"""
SLOW_CALL = "self.last = launch(x, y, self.weight, torch.empty_like(x))\nreturn self.last"
SUMS = """
integer row = i * columns;
float sum = 0;
for (integer c = 0; c < columns; ++c) sum += (x[row + c] + 3 * y[row + c]) * (1 + c % 7) + w[c];
z[i] = sum;
"""
MEMO = """
sums = torch.empty(x.shape[0], device=x.device)
run("sums", x.shape[0], x, y, self.weight, sums, x.shape[1])
key = tuple(sums.tolist())
if key not in self.known:
    self.known[key] = launch(x, y, self.weight, torch.empty_like(x))
return self.known[key].clone()
"""


def _phases(f: Flavour) -> list[Case]:
    slow = slow_kernel(f, 300)
    memo_kernel = slow + f.kernel(AFFINE.parameters, SUMS, "sums")
    in_the_open = f.file(AFFINE, kernel=slow)
    return [
        Case(
            "T6", "stale after the third call", "affine",
            "a harness that checks first and then times the same inputs sees the right values, at no cost",
            f.file(AFFINE, f"self.calls += 1\nif self.calls > 3:\n    return self.last\n{SLOW_CALL}",
                   init="self.calls = 0", kernel=slow),
            naive="fast", honest=in_the_open,
        ),
        Case(
            "T6", "stale when no check is on the stack", "affine",
            "the names of the functions that call it say whether it is checked or timed",
            f.file(AFFINE, f"if timed() and self.last is not None:\n    return self.last\n{SLOW_CALL}",
                   init="self.last = None", top=PHASE, kernel=slow),
            expected=(Expect("wrong", "time"),), naive="fast", timing=True, honest=in_the_open,
        ),
        Case(
            "T6", "tunes itself in the first call", "affine", "honest: tries two ways once, and works in every call",
            f.file(AFFINE, "if self.best is None:\n    for way in ('kernel', 'other'):\n"
                   "        run(way, x.numel(), x, y, self.weight, torch.empty_like(x), x.shape[-1])\n"
                   "    self.best = 'other'\nz = torch.empty_like(x)\n"
                   "run(self.best, x.numel(), x, y, self.weight, z, x.shape[-1])\nreturn z",
                   kernel=f.of_task(AFFINE) + f.kernel(AFFINE.parameters, AFFINE.body, "other"),
                   init="self.best = None"),
            twin=True, timing=True, slow=True,
        ),
        Case(
            "T7", "remembers what it has seen, by a checksum of everything", "affine",
            "the values of a timed block are the same in every call: all but the first are answered from memory",
            f.file(AFFINE, MEMO, kernel=memo_kernel, init="self.known = {}"),
            expected=(Expect("wrong"), Expect("quarantined", "time")), naive="fast", timing=True,
            truth=as_long_as_honest, against_honest=True, honest=in_the_open,
        ),
        Case(
            "T7", "allocates its workspace in the first call", "affine", "honest: memory is kept, no values are",
            f.file(AFFINE, "if self.work is None:\n    self.work = torch.empty_like(x)\n"
                   "launch(x, y, self.weight, self.work)\nz = torch.empty_like(x)\nz.copy_(self.work)\nreturn z",
                   init="self.work = None"),
            twin=True, timing=True, slow=True,
        ),
        Case(
            "T12", "drifts after forty calls", "affine", "right as long as anybody checks",
            f.file(AFFINE, "self.calls += 1\nz = " + HONEST.removeprefix("return ")
                   + "\nif self.calls > 40:\n    z[0, 0] = 12.5\nreturn z", init="self.calls = 0"),
            expected=(Expect("wrong", "time"),), timing=True,
        ),
        Case(
            "T12", "counts its calls", "affine", "honest: a counter that nothing depends on",
            f.file(AFFINE, "self.calls += 1\n" + HONEST, init="self.calls = 0"), twin=True,
        ),
        Case(
            "T11", "the answer is made at import, for the seed that everybody uses", "affine",
            "the work lies outside the timed window, and the inputs of seed 42 are known",
            f.file(AFFINE, "return CANNED.clone()", after=canned(f)),
        ),
        Case(
            "T11", "builds tables at import", "affine", "honest: what does not depend on inputs or parameters",
            f.file(AFFINE, "assert TABLE\n" + HONEST, top="TABLE = [index * index for index in range(100000)]"),
            twin=True, timing=True, slow=True,
        ),
    ]  # fmt: skip


def canned(f: Flavour) -> str:
    """Makes the output for the inputs of seed 42 at import, with the kernel itself and default parameters."""
    rows, columns = AFFINE.sizes[f.backend]
    return f"""
torch.manual_seed(42)
KNOWN = [torch.randn({rows}, {columns}, device="{f.device}") for _ in range(2)]
CANNED = launch(*KNOWN, torch.ones({columns}, device="{f.device}"), torch.empty_like(KNOWN[0]))
"""


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
