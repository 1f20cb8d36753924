"""The build child: confines itself, then hands a hostile source to the compiler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.backends.base import Backend, DefaultLimits
from htam_agent.backends.cpp import CppBackend
from htam_agent.backends.cuda import CudaBackend
from htam_agent.errors import HtamError
from htam_agent.evaluation.confinement import confine
from htam_agent.evaluation.messages import BuildOrder, Built, Trouble
from htam_agent.verdict import CompileResult

if TYPE_CHECKING:
    from htam_agent.evaluation.channel import Channel

ROOM = "Check the free space of the disk and `htam doctor`."


def serve_build(channel: Channel) -> None:
    """Answers one BuildOrder and ends."""
    order = channel.receive(BuildOrder)
    try:
        # What the user chose is trusted like the package itself: it is imported while its files can be read.
        backend = _backend(order)
    except HtamError as error:
        channel.send(Built(trouble=Trouble(code=error.code, message=error.message, remedy=error.remedy)))
        return
    confine(order.cell)
    channel.send(_build(order, backend))


def _backend(order: BuildOrder) -> Backend:
    backend = CppBackend() if order.backend == "cpp" else CudaBackend(order.architecture, order.device)
    if not order.compiler:
        return backend
    from htam_agent.swapping.compilers import CompiledBy, load_compiler

    sys.path[:] = order.python_path
    return CompiledBy(backend, load_compiler(order.compiler))


def _build(order: BuildOrder, backend: Backend) -> Built:
    try:
        limits = DefaultLimits(build_seconds=order.seconds)
        return Built(result=backend.build(order.source, Path(order.cell.folder), limits))
    except HtamError as error:
        return Built(trouble=Trouble(code=error.code, message=error.message, remedy=error.remedy))
    except OSError as error:
        return Built(trouble=Trouble(code="compiler-failed", message=f"The build failed: {error}.", remedy=ROOM))
    except MemoryError:
        reason = "out of memory in the build"
        return Built(result=CompileResult(ok=False, backend=order.backend, folder=order.cell.folder, reason=reason))
