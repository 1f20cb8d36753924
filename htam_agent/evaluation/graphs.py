"""Calls replayed from a CUDA graph: what a call takes when the host need not launch it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WARM_CALLS = 3


class CaptureFailed(RuntimeError):
    """The call cannot be captured: it waits for the device, or allocates by other ways than torch's."""


class Replay:
    """One call captured on the device; its result stays where the capture put it."""

    def __init__(self, call: Callable[[], object]) -> None:
        """Captures `call` after a few calls on another stream, as torch asks for. Raises CaptureFailed."""
        import torch

        stream: Callable[[], torch.cuda.Stream] = torch.cuda.Stream
        side = stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_CALLS):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph: torch.cuda.CUDAGraph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.result = call()
            graph.replay()
            torch.cuda.synchronize()
        except Exception as error:  # a call that cannot be captured fails in as many ways as there are
            raise CaptureFailed(f"no CUDA graph: {type(error).__name__}: {str(error)[:200]}") from error
        self._graph = graph

    def run(self, count: int) -> None:
        """Replays `count` times and waits for the device."""
        import torch

        for _ in range(count):
            self._graph.replay()
        torch.cuda.synchronize()
