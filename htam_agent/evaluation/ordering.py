"""One call whose inputs arrive late: work that does not keep to the current stream shows.

A kernel on another stream is honest where that stream waits for the current one and is waited for. Here the device is
kept busy on the current stream, the inputs hold zeros until that work has ended, and the outputs are taken from the
current stream at once: who does not wait computes from zeros, who is not waited for has not written yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from htam_agent.evaluation.trees import flat_span

if TYPE_CHECKING:
    import torch


def call_late(call: Callable[[], object], inputs: Sequence[torch.Tensor], occupy: Callable[[], None]) -> object:
    """The result of `call` on `inputs`, any tensors on a CUDA device, which are as before afterwards.

    `occupy` queues some milliseconds of work on the current stream. The result may still be under way on it.
    """
    import torch

    places = [flat_span(tensor) for tensor in inputs]
    values = [place.clone() for place in places]
    for place in places:
        place.zero_()
    torch.cuda.synchronize()
    occupy()
    for place, value in zip(places, values, strict=True):
        place.copy_(value)
    return call()
