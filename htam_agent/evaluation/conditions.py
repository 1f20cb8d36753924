"""What both sides are timed under, said in one place: flags, no gradients, no garbage collection in between.

The rest is equal by construction: both processes are forked from one zygote with one allocator setting, the model is in
the mode in which it was judged, and the inputs lie in the same shared memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def timed_conditions(set_flags: Callable[[], None]) -> Iterator[None]:
    """`set_flags` sets what is allowed of TF32. The garbage collector is off inside: a collection in one side's block
    would be charged to its kernel."""
    import torch

    set_flags()
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.no_grad():
            yield
    finally:
        if collecting:
            gc.enable()
