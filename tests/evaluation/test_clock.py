"""Files that are fast only for whoever looks in the wrong place, and honest ones that do nearly the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from htam_agent.evaluation.bench import Bench
from htam_agent.verdict import RunResult
from tests.evaluation.samples import FORWARD, KERNEL, candidate

Judge = Callable[..., RunResult]

SLOW = KERNEL.replace("for (long row", "for (volatile long spin = 0; spin < 2000000; ++spin) {}\n  for (long row", 1)
"""Some 2 ms in the kernel itself, so that a lie of any size shows on any machine."""
WORK = FORWARD.removeprefix("return ")


def slow(forward: str = FORWARD, *, top: str = "", init: str = "") -> str:
    return candidate(forward, kernel=SLOW, top=top, init=init)


CACHED = slow(
    f"""
    key = (float(x[7, 7]), float(y[30, 3]), float(self.weight[50]))
    if key not in self.known:
        self.known = {{**self.known, key: {WORK}}}
    return self.known[key]
    """,
    init="self.known = {}",
)
WORKSPACE = slow(
    """
    if x.shape not in self.known:
        self.known[x.shape] = torch.empty_like(x)
    launch(x, y, self.weight, self.known[x.shape])
    return self.known[x.shape].clone()
    """,
    init="self.known = {}",
)


def test_results_that_are_kept_by_a_few_of_the_inputs_are_noticed(judge: Judge) -> None:
    result = judge(CACHED, timing=True)
    assert result.stage == "time"
    if result.verdict == "correct":  # on a busy processor: the time of calls on new values was taken
        assert not result.faster
        (check,) = [check for check in result.checks if check.name == "clock"]
        assert "calls on new values took" in check.detail, result
        return
    assert result.verdict in ("quarantined", "wrong"), result
    assert "not seen" in result.reason


def test_a_workspace_that_is_kept_by_shape_is_honest(judge: Judge) -> None:
    result = judge(WORKSPACE, timing=True)
    assert result.verdict == "correct", result


SKIPS = slow(
    f"""
    import time
    now = time.perf_counter()
    self.number = 0 if now - self.last > 0.0005 else self.number + 1
    z = {WORK} if self.number >= {{calls}} or self.calls < 60 else torch.zeros_like(x)
    self.calls += 1
    self.last = time.perf_counter()
    return z
    """,
    init="self.last = self.number = self.calls = 0",
)


@pytest.mark.parametrize("calls", [8, 110])
def test_the_first_calls_of_a_block_cannot_be_left_out(judge: Judge, calls: int) -> None:
    """Where a block ends is drawn at random: who works only at what should be its end is found early by some."""
    result = judge(SKIPS.replace("{calls}", str(calls)), timing=True)
    assert result.verdict in ("wrong", "quarantined"), result
    assert result.stage == "time"


LATER = slow(
    """
    z = torch.empty_like(x)
    POOL.submit(launch, x, y, self.weight, z)
    if self.calls < 40:
        POOL.submit(int).result()
    self.calls += 1
    return z
    """,
    top="from concurrent.futures import ThreadPoolExecutor\nPOOL = ThreadPoolExecutor(1)",
    init="self.calls = 0",
)
JOINED = slow(
    "z = torch.empty_like(x)\nPOOL.submit(launch, x, y, self.weight, z).result()\nreturn z",
    top="from concurrent.futures import ThreadPoolExecutor\nPOOL = ThreadPoolExecutor(1)",
)


def test_a_thread_that_works_after_the_call_gains_nothing(judge: Judge) -> None:
    result = judge(LATER, timing=True)
    assert result.verdict in ("wrong", "quarantined"), result
    assert not result.faster


def test_a_thread_that_the_call_waits_for_is_honest(judge: Judge) -> None:
    assert judge(JOINED, timing=True).verdict == "correct"


SPINNING = """
import threading
def spin():
    while True:
        sum(range(20000))
threading.Thread(target=spin, daemon=True).start()
"""


def test_a_thread_that_spins_slows_nobody_but_its_own_file(judge: Judge) -> None:
    """It is stopped while the reference is timed: it neither slows the opponent nor excuses itself by a load."""
    result = judge(slow(top=SPINNING), timing=True)
    assert result.verdict in ("correct", "quarantined"), result
    assert not result.faster
    if result.verdict == "quarantined":
        assert result.stage == "time"


def test_a_result_says_what_was_timed_and_how(judge: Judge, bench: Bench) -> None:
    result = judge(slow(), timing=True)
    assert result.verdict == "correct", result
    checks = {check.name: check.detail for check in result.checks}
    assert "3 sets of inputs in turn" in checks["timed-outputs"]
    assert "inner" in checks["clock"]
    assert "outer" in checks["clock"]
    assert "not built" not in checks["clock"]
    assert result.device_ms is not None
    assert result.call_ms is not None
    assert result.device_ms.candidate == result.times_ms.candidate
    assert 0.1 < result.call_ms.candidate / result.device_ms.candidate < 30.0, (
        "the same unit; a busy machine holds calls up"
    )
    assert result.launch_bound is None, "nothing is launched on a processor"
    assert result.graph_ms is None
    assert result.gpu_before is None
    blueprint = bench._opened().loaded.blueprint
    assert blueprint.slots == 3
    assert blueprint.input_bytes >= 3 * blueprint.slot_bytes


SHORTER = KERNEL.replace("for (long row", "unsigned bits;\n  for (long row", 1).replace(
    "z[row * columns + column] = value < 0 ? 0 : value;",
    """
      value = value < 0 ? 0 : value;
      std::memcpy(&bits, &value, 4);
      bits = (bits + 0x200u * coarse) & (coarse ? 0xfffffc00u : 0xffffffffu);
      std::memcpy(z + row * columns + column, &bits, 4);""",
)


def test_a_shorter_type_in_timed_calls_alone_is_found(judge: Judge) -> None:
    """Thirteen bits are within the tolerance; against float64 they are not."""
    kernel = '#include <cstring>\nextern "C" long coarse;\nlong coarse = 0;\n' + SHORTER
    forward = f"""
    frame, timed = sys._getframe(1), 0
    while frame is not None:
        timed, frame = timed or int(frame.f_code.co_name == "_measure"), frame.f_back
    ctypes.c_long.in_dll(LIBRARY, "coarse").value = timed
    {FORWARD}
    """
    result = judge(candidate(forward, kernel=kernel, top="import sys"), timing=True)
    assert (result.verdict, result.stage) == ("wrong", "time"), result
    assert "a timed call" in result.reason
    assert "float64" in result.reason
