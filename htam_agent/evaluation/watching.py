"""What runs inside one call of a candidate: operators of torch and computing packages. Runs in its process: evidence.

Two ways, so that neither makes a call special in the same manner: a dispatch mode, which sees each operator of the
calling thread down to the first one that is not torch's own, and torch's recorder of functions, which sees all threads
and the inside of custom operators, autograd functions and scripts, with what was called from what.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from htam_agent.evaluation.policy import COMPUTING_PACKAGES, LIBRARY, MOVING

if TYPE_CHECKING:
    import torch
    from torch.autograd.profiler_util import FunctionEvent

MOST = 2000
COMPILED = ("Torch-Compiled Region", "TorchDynamo Cache Lookup", "CompiledFunction", "## Call CompiledFxGraph")
"""Labels by which the recorder shows code that torch.compile made."""
FUSED = ("TensorExpr", "CudaFusion", "FusionGroup")
"""Parts of labels by which it shows kernels that TorchScript made."""


@dataclass
class Observed:
    """`operators`: seen by the dispatch mode, "aten.relu". `recorded`: seen by the recorder, each with its callers,
    outermost first, "mine.op > aten.mul"; torch.compile and torch.jit stand for code that those generated, "numpy.dot"
    for a call of a computing package."""

    operators: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)


@contextmanager
def observed(watch: bool, record: bool) -> Iterator[Observed]:
    """Fills in what ran, at the end of the block."""
    found = Observed()
    operators: dict[str, None] = {}
    calls: dict[str, None] = {}
    with ExitStack() as stack:
        recorder = stack.enter_context(_Recorder(calls)) if record else None
        if watch:
            stack.enter_context(_watcher(operators))
        yield found
    found.operators = list(operators)[:MOST]
    if recorder is not None:
        found.recorded = list(dict.fromkeys([*recorder.paths(), *calls]))[:MOST]


def _watcher(names: dict[str, None]) -> AbstractContextManager[object]:
    from torch.utils._python_dispatch import TorchDispatchMode

    def dispatch(
        self: object,
        func: torch._ops.OpOverload,
        kinds: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        names[str(func.overloadpacket)] = None
        return func(*args, **(kwargs or {}))

    # torch's mode has no type information: a class statement would be an untyped call in a typed context.
    kind = types.new_class("Watcher", (TorchDispatchMode,), {}, lambda body: body.update(__torch_dispatch__=dispatch))
    watcher: AbstractContextManager[object] = kind()
    return watcher


class _Recorder:
    """torch's recorder of functions over all threads, and Python's profile function for computing packages."""

    def __init__(self, calls: dict[str, None]) -> None:
        from torch._C._profiler import _ExperimentalConfig
        from torch.autograd.profiler import profile

        self._calls = calls
        self._installed = ("<frozen", *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
        config = _ExperimentalConfig(profile_all_threads=True)
        self._profile = profile(use_cpu=True, use_kineto=True, experimental_config=config)
        self._context: AbstractContextManager[object] = self._profile  # whose methods have type information

    def __enter__(self) -> _Recorder:
        self._context.__enter__()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        self._context.__exit__(None, None, None)

    def paths(self) -> Iterator[str]:
        """Each operator with its callers, once the block has ended."""
        for event in self._profile.function_events or ():
            path = [name for name in map(_short, _callers(event)) if name]
            if path:
                yield " > ".join(path)

    def _note(self, frame: types.FrameType, event: str, argument: object) -> None:
        if event == "c_call":
            caller, name = frame, str(getattr(argument, "__name__", ""))
            module = "numpy" if name in ("numpy", "from_numpy") else getattr(argument, "__module__", None)
        elif event == "call" and frame.f_back is not None:
            caller, name, module = frame.f_back, frame.f_code.co_name, frame.f_globals.get("__name__")
        else:
            return
        package = str(module).partition(".")[0]
        # torch itself looks at numpy when it imports parts of its own.
        if package in COMPUTING_PACKAGES and not caller.f_code.co_filename.startswith(self._installed):
            self._calls[f"{package}.{name}"] = None


def _callers(event: FunctionEvent) -> list[str]:
    names: list[str] = []
    here: FunctionEvent | None = event
    while here is not None:
        names.append(str(here.name))
        here = here.cpu_parent
    return names[::-1]


def _short(label: str) -> str:
    """ "aten.mul" of "aten::mul"; empty for what computes nothing itself: a user's labels, operators made of others."""
    if label.startswith(COMPILED):
        return "torch.compile"
    if any(words in label for words in FUSED):
        return "torch.jit"
    space, separator, name = label.partition("::")
    if not separator or not space.isidentifier() or not name.isidentifier():
        return ""
    return "" if space == "aten" and _composite(name) else f"{space}.{name}"


@functools.cache
def _composite(name: str) -> bool:
    """Whether an ATen operator that the policy does not name only calls others, which are recorded themselves."""
    import torch

    packet = getattr(torch.ops.aten, name, None)
    if name in MOVING or name in LIBRARY or packet is None:
        return False
    full = [f"aten::{name}" + (f".{overload}" if overload != "default" else "") for overload in packet.overloads()]
    known = filter(torch._C._dispatch_has_kernel, full)  # some overloads are TorchScript's alone
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(item, "CompositeImplicitAutograd") for item in known)


def namespaces() -> set[str]:
    """Namespaces of all operators that are registered with torch in this process."""
    import torch

    return {name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()}
