"""T4 and T5: files that forge clocks, statistics and answers."""

from __future__ import annotations

from tests.cheats.flavours import Flavour
from tests.cheats.table import Case
from tests.cheats.tasks import AFFINE
from tests.cheats.timing import FORGED, HONEST, as_long_as_honest, slow_kernel

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


def cases(f: Flavour) -> list[Case]:
    """Cheats and twins of T4 and T5."""
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
