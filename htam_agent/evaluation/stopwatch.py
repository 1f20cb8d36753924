"""The stopwatch that both sides use: milliseconds of each call, on one device.

On CUDA every call stands between two events of the driver with a cold L2 (a buffer of twice its size is written before
the first event); on the CPU every call is timed by the monotonic clock. The loop is C (native/clock.c) where a C
compiler was found: then no Python function that a candidate could replace stands inside the window. What it gives in a
candidate's process is a claim all the same; the harness's own clock is its proof (proof.py).
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from htam_agent.evaluation.native import native_library

if TYPE_CHECKING:
    import torch

NO_ERROR, RAISED = 0, -2
MOST_EVENTS = 16384
"""Calls of one block, at most: the shim's room for pairs of events."""
LEAD = 16
"""Flushes more before the first call of a block, so that the host is ahead of the device; as in the C loop."""
OCCUPYING = 200
"""Flushes that keep a device busy for longer than a host takes to launch a call: some 5 ms."""
Call = Callable[[], object]


class ClockFault(RuntimeError):
    """The driver refused what the stopwatch asked of it: an error of an earlier kernel, as a rule."""


@functools.cache
def native_clock() -> tuple[ctypes.PyDLL | None, str]:
    """The C loop, loaded once in a process, or None and why there is none."""
    found = native_library("clock")
    if not found.path:
        return None, found.reason
    try:
        library = ctypes.PyDLL(found.path)
    except OSError as error:
        return None, str(error)
    objects, count, double = ctypes.py_object, ctypes.c_long, ctypes.c_double
    calls = (objects, count, objects)
    library.htam_block_cpu.argtypes = (*calls, count, count, ctypes.POINTER(double))
    library.htam_block_cuda.argtypes = (
        *calls, count, ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_size_t, count,
        ctypes.POINTER(ctypes.c_float),
        ctypes.POINTER(double),
    )  # fmt: skip
    library.htam_back_to_back.argtypes = (*calls, count)
    library.htam_reserve.argtypes = (count,)
    library.htam_set_aside.restype = ctypes.c_size_t
    return library, ""


class Stopwatch:
    """Times calls on one device. On CUDA it owns the flush buffer (2 x L2, at least 64 MiB).

    `kept` holds the last result of each of the callables of a block, in their order.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self.kept: list[object] = []
        self.hidden_ms = 0.0
        """Milliseconds for which the device went on after the last call of a CUDA block had ended by its events."""
        self.first_ms = 0.0
        """Milliseconds of a CPU block's first call, which is not among its times."""
        self.set_aside = 0
        """Bytes of the L2 that the calls of a CUDA block have set aside for data that then outlive a flush."""
        self._flush: torch.Tensor | None = None
        # References are taken now, before anything hostile is imported.
        self._clock = time.perf_counter
        self._native, self.missing = native_clock()
        if device != "cpu":
            self._open_device()

    def _open_device(self) -> None:
        import torch

        size = max(64 << 20, 2 * torch.cuda.get_device_properties(self._device).L2_cache_size)
        self._flush = torch.empty(size // 4, dtype=torch.int32, device=self._device)
        self._words, self._address = size // 4, self._flush.data_ptr()
        self._stream = torch.cuda.current_stream(self._device).cuda_stream
        self._wait = torch.cuda.synchronize
        if self._native is not None and self._native.htam_open_driver():
            self._native, self.missing = None, "the driver's library lacks a function of the stopwatch"

    def warm(self, calls: Sequence[Call], seconds: float) -> float:
        """Runs the callables in turn for at least `seconds`, each twice; milliseconds of a call, the first round left
        out."""
        for call in calls:
            call()
        self.synchronize()
        begin = self._clock()
        done = 0
        while done < len(calls) or self._clock() - begin < seconds:
            calls[done % len(calls)]()
            self.synchronize()
            done += 1
        return (self._clock() - begin) * 1e3 / done

    def block(
        self, calls: Sequence[Call], count: int, *, alone: bool = False, flushes: int = 1
    ) -> tuple[list[float], list[object]]:
        """Milliseconds of each of `count` calls, the callables in turn, and the last result of each.

        On a CPU an untimed call comes first, unless `alone`. On CUDA the L2 is flushed `flushes` times before each
        call: 0, and data stay there from call to call; several, and the device is busy until a slow host has launched
        the call. Raises ClockFault, or what a call raises.
        """
        self._make_room(calls)
        if self._flush is None:
            times = self._block_cpu(list(calls), count, alone)
        elif self._native is not None:
            self._native.htam_reset_cache()
            times = self._block_cuda(list(calls), count, flushes)
            self.set_aside = self._native.htam_set_aside()
        else:
            times = self._block_events(calls, count, flushes)
        return times, self.kept

    def back_to_back(self, calls: Sequence[Call], count: int) -> float:
        """`count` calls with nothing between them, and a wait for the device: the harness's clock is outside. Gives
        the milliseconds that each kept the host, the wait left out."""
        self._make_room(calls)
        begin = self._clock()
        if self._native is not None:
            self._native.htam_back_to_back(list(calls), len(calls), self.kept, count)
        else:
            for number in range(count):
                place = number % len(calls)
                self.kept[place] = None
                self.kept[place] = calls[place]()
        host_ms = (self._clock() - begin) * 1e3 / max(1, count)
        self.synchronize()
        return host_ms

    def occupy(self) -> None:
        """Queues some milliseconds of work on the device's current stream."""
        for _ in range(OCCUPYING if self._flush is not None else 0):
            assert self._flush is not None, "asked one line above"
            self._flush.zero_()

    def synchronize(self) -> None:
        """Waits for the device."""
        if self._flush is not None:
            self._wait(self._device)

    def _make_room(self, calls: Sequence[Call]) -> None:
        if len(self.kept) != len(calls):
            self.kept = [None] * len(calls)

    def _block_cpu(self, calls: list[Call], count: int, alone: bool) -> list[float]:
        now = self._clock
        begin = now()
        # Not among the times: the other side ran last, so this side's threads sleep and its data have left the caches.
        if not alone:
            self.kept[0] = None
            self.kept[0] = calls[0]()
        self.first_ms = (now() - begin) * 1e3
        if self._native is not None:
            times = (ctypes.c_double * count)()
            self._native.htam_block_cpu(calls, len(calls), self.kept, 0, count, times)
            return list(times)
        taken = []
        for number in range(count):
            place = number % len(calls)
            self.kept[place] = None  # freed before the next call on both sides, so that its memory can be used again
            begin = now()
            self.kept[place] = calls[place]()
            taken.append((now() - begin) * 1e3)
        return taken

    def _block_cuda(self, calls: list[Call], count: int, flushes: int) -> list[float]:
        assert self._native is not None, "only a native stopwatch comes here"
        times, hidden = (ctypes.c_float * count)(), ctypes.c_double()
        status = self._native.htam_block_cuda(
            calls, len(calls), self.kept, count, self._stream, self._address, self._words, flushes, times,
            ctypes.byref(hidden),
        )  # fmt: skip
        if status != NO_ERROR:
            self.synchronize()  # torch says it in better words where the device's own error is meant
            raise ClockFault(f"the CUDA driver answered {status} to the stopwatch")
        self.hidden_ms = hidden.value
        return list(times)

    def _block_events(self, calls: Sequence[Call], count: int, flushes: int) -> list[float]:
        """The same by torch's events, where there is no C compiler."""
        import torch

        assert self._flush is not None, "only a CUDA stopwatch comes here"
        event: Callable[..., torch.cuda.Event] = torch.cuda.Event
        begins = [event(enable_timing=True) for _ in range(count)]
        ends = [event(enable_timing=True) for _ in range(count)]
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            place = number % len(calls)
            self.kept[place] = None
            for _ in range(flushes + (LEAD if flushes and not number else 0)):
                self._flush.zero_()
            begin.record()
            self.kept[place] = calls[place]()
            end.record()
        ends[-1].synchronize()
        ended = self._clock()
        self.synchronize()
        self.hidden_ms = (self._clock() - ended) * 1e3
        return [begin.elapsed_time(end) for begin, end in zip(begins, ends, strict=True)]
