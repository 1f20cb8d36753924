"""The build child: confines itself, then hands a hostile source to the compiler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.backends.base import DefaultLimits
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
    confine(order.cell)
    channel.send(_build(order))


def _build(order: BuildOrder) -> Built:
    backend = CppBackend() if order.backend == "cpp" else CudaBackend(order.architecture, order.device)
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
