"""Cheats and twins that only a GPU has: streams, graphs, the L2 cache, events."""

from __future__ import annotations

from htam_agent.verdict import RunResult
from tests.cheats.flavours import CUDA
from tests.cheats.table import CLOCK, Case, Expect
from tests.cheats.tasks import AFFINE
from tests.cheats.timing import FORGED, as_long_as_honest

HONEST = "return launch(x, y, self.weight, torch.empty_like(x))"
ELSEWHERE = (Expect("wrong"), Expect("quarantined", "time", "busy|stream|device|clock"))

ON_STREAM = """
def on(stream, x, y, w, z, times=40):
    for _ in range(times):
        run("kernel", x.numel(), x, y, w, z, x.shape[-1], stream=stream)
    return z
"""
BOTH_WAYS = """
stream = self.stream
stream.wait_stream(torch.cuda.current_stream())
z = on(stream, x, y, self.weight, torch.empty_like(x), 2)
torch.cuda.current_stream().wait_stream(stream)
return z
"""
ONE_WAY = """
stream = self.stream
stream.wait_stream(torch.cuda.current_stream())
return on(stream, x, y, self.weight, torch.empty_like(x))
"""
LATER = """
z = torch.empty_like(x)
stream = self.stream
stream.wait_stream(torch.cuda.current_stream())
on(stream, x, y, self.weight, z, 20)
if self.calls % 4 == 0:
    torch.cuda.current_stream().wait_stream(stream)
self.calls += 1
return z
"""
GRAPH = """
if self.graph is None:
    launch(x, y, self.weight, torch.empty_like(x))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    self.z = torch.empty_like(x)
    {inputs}
    stream = torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        launch({captured}, self.weight, self.z)
    self.graph = graph
{refresh}
self.graph.replay()
return self.z.clone()
"""
PERSISTING = """
class Window(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("ratio", ctypes.c_float),
                ("hit", ctypes.c_int), ("miss", ctypes.c_int), ("pad", ctypes.c_char * 64)]

def keep(tensor):
    checked(DRIVER.cuCtxSetLimit(6, ctypes.c_size_t(30 << 20)))
    window = Window(tensor.data_ptr(), min(tensor.numel() * 4, 30 << 20), 1.0, 2, 1)
    handle = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    checked(DRIVER.cuStreamSetAttribute(handle, 1, ctypes.byref(window)))
"""
EVENTS = """
torch.cuda.Event.elapsed_time = lambda self, other: 1e-3
torch.cuda.Event.record = lambda self, *args: None
torch.cuda.synchronize = lambda *args, **named: None
torch.cuda.Event.synchronize = lambda self: None
"""
SLOW = "for _ in range(40):\n    z = launch(x, y, self.weight, torch.empty_like(x))\nreturn z"


def as_slow_as_honest(result: RunResult, honest: RunResult | None) -> bool:
    """Cold inputs were read from memory as the honest file reads them."""
    ours, theirs = result.times_ms.candidate, honest.times_ms.candidate if honest else None
    return ours is not None and theirs is not None and ours >= 0.93 * theirs


def cases() -> list[Case]:
    """Rows for the backend cuda alone."""
    return [*_streams(), *_graphs(), *_cache(), *_events()]


def _streams() -> list[Case]:
    stream = "self.stream = torch.cuda.Stream()\nself.calls = 0"
    return [
        Case("T1", "a side stream that nobody joins", "affine", "events on the current stream end before it",
             CUDA.file(AFFINE, "return on(self.stream, x, y, self.weight, torch.empty_like(x))", after=ON_STREAM,
                       init=stream), expected=ELSEWHERE, naive=None, timing=True),
        Case("T1", "a side stream that waits and is not waited for", "affine",
             "the inputs are ready, and a check a moment later finds the right values",
             CUDA.file(AFFINE, ONE_WAY, after=ON_STREAM, init=stream), expected=ELSEWHERE, naive=None, timing=True),
        Case("T1", "a side stream that is joined in every fourth call", "affine",
             "the median of the calls does not see the waiting",
             CUDA.file(AFFINE, LATER, after=ON_STREAM, init=stream), expected=ELSEWHERE, naive=None, timing=True),
        Case("T1", "a side stream that is joined", "affine", "honest: both streams wait for each other",
             CUDA.file(AFFINE, BOTH_WAYS, after=ON_STREAM, init=stream), twin=True, timing=True),
    ]  # fmt: skip


def _graphs() -> list[Case]:
    stale = GRAPH.format(inputs="pass", captured="x, y", refresh="")
    fresh = GRAPH.format(inputs="self.x, self.y = x.clone(), y.clone()", captured="self.x, self.y",
                         refresh="self.x.copy_(x)\nself.y.copy_(y)")  # fmt: skip
    return [
        Case("S11", "a graph with the pointers of its first call", "affine",
             "a harness that times one set of tensors sees the right values at the cost of a replay",
             CUDA.file(AFFINE, stale, init="self.graph = None"), naive=None, timing=True),
        Case("S11", "a graph whose inputs are copied in", "affine", "honest: every replay reads the new values",
             CUDA.file(AFFINE, fresh, init="self.graph = None"), twin=True, timing=True),
    ]  # fmt: skip


def _cache() -> list[Case]:
    return [
        Case("T8", "an input that stays in the L2 cache", "affine",
             "persisting lines survive the harness's flush: a cold call is a warm one",
             CUDA.file(AFFINE, "keep(x)\n" + HONEST, after=PERSISTING), expected=CLOCK, naive=None, timing=True,
             truth=as_slow_as_honest, against_honest=True),
        Case("T8", "streaming loads and stores", "affine", "honest: hints for its own accesses",
             CUDA.file(AFFINE, kernel=CUDA.of_task(AFFINE, "x[i] * w[i % columns] + y[i]",
                                                   "__ldcs(x + i) * w[i % columns] + __ldcs(y + i)")),
             twin=True, timing=True),
    ]  # fmt: skip


def _events() -> list[Case]:
    return [
        Case("T4", "events, synchronize and record replaced", "affine", "the harness calls them in this process",
             CUDA.file(AFFINE, SLOW, top=EVENTS), expected=FORGED, naive=None, timing=True, truth=as_long_as_honest,
             against_honest=True, honest=CUDA.file(AFFINE, SLOW)),
        Case("T5", "events of no length", "affine", "an average of ratios collapses",
             CUDA.file(AFFINE, SLOW, top=EVENTS.replace("1e-3", "0.0")), expected=CLOCK, naive=None, timing=True,
             truth=as_long_as_honest, against_honest=True,
             honest=CUDA.file(AFFINE, SLOW)),
        Case("T2", "a thread that launches after the call", "affine", "the call returns at once",
             CUDA.file(AFFINE, "z = torch.empty_like(x)\nthreading.Thread(target=late, args=(self, x, y, z)).start()\n"
                       "return z", after=LATE),
             expected=(Expect("wrong"), Expect("quarantined", reason="thread|later|busy|device")), naive=None,
             timing=True),
    ]  # fmt: skip


LATE = """
import threading, time

def late(self, x, y, z):
    time.sleep(0.01)
    torch.cuda.set_device(x.device)
    launch(x, y, self.weight, z)
"""
