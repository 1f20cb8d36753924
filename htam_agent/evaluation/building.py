"""The build child: confines itself, then hands a hostile source to the compiler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.backends.base import DefaultLimits
from htam_agent.backends.cpp import CppBackend
from htam_agent.backends.cuda import CudaBackend
from htam_agent.errors import HtamError
from htam_agent.evaluation.confinement import confine
from htam_agent.evaluation.messages import BuildOrder
from htam_agent.verdict import CompileResult

if TYPE_CHECKING:
    from htam_agent.evaluation.channel import Channel


def serve_build(channel: Channel) -> None:
    """Answers one BuildOrder with a CompileResult and ends."""
    order = channel.receive(BuildOrder)
    confine(order.cell)
    channel.send(_build(order))


def _build(order: BuildOrder) -> CompileResult:
    backend = CppBackend() if order.backend == "cpp" else CudaBackend(order.architecture, order.device)
    try:
        return backend.build(order.source, Path(order.cell.folder), DefaultLimits(build_seconds=order.seconds))
    except HtamError as error:
        return CompileResult(ok=False, backend=order.backend, folder=order.cell.folder, reason=str(error))
    except MemoryError:
        return CompileResult(
            ok=False, backend=order.backend, folder=order.cell.folder, reason="out of memory in the build"
        )
