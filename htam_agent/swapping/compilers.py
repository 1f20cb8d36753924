"""Another compiler behind a backend: the key of the build cache knows it, and the build process calls it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from htam_agent.backends.base import Availability, Backend, BuildLimits, Occupancy, binary_name
from htam_agent.errors import HtamError, InfrastructureError
from htam_agent.swapping.calling import answer_of
from htam_agent.swapping.finding import imported
from htam_agent.swapping.protocols import BuildRequest
from htam_agent.verdict import Ceilings, CompileResult, DeviceFacts, KernelResources, Launch
from htam_agent.words import Backend as BackendName

if TYPE_CHECKING:
    from htam_agent.swapping.protocols import Compiler


@dataclass(frozen=True)
class OtherCompiler:
    """A compiler that was swapped in and checked. `served`: it is an MCP server, and builds there rather than in a
    confined process of this program's."""

    label: str
    """As the settings name it."""
    implementation: Compiler
    path: str = ""
    """Import path; empty where it is served."""
    folders: tuple[str, ...] = ()
    """What the confined build process must be able to read to import it."""

    @property
    def served(self) -> bool:
        return not self.path

    def build(self, request: BuildRequest) -> CompileResult:
        """Build in this process. Raises InfrastructureError when the compiler itself fails, or claims a library that is
        not there."""
        result = answer_of(self.implementation.build, CompileResult, f"The compiler {self.label!r}", request)
        if result.ok and not request.output.is_file():
            raise InfrastructureError(
                f"The compiler {self.label!r} says that it built the source, and there is no file at request.output.",
                "Mend or replace it, then resume the run; earlier results are kept.",
                "tool-answer",
            )
        place = {"backend": request.backend, "folder": str(request.folder)}
        return result.model_copy(update={**place, "binary": str(request.output) if result.ok else ""})


class CompiledBy:
    """A backend whose sources another compiler builds; what concerns the device is the backend's own."""

    def __init__(self, backend: Backend, compiler: OtherCompiler) -> None:
        self._backend = backend
        self.compiler = compiler

    @property
    def name(self) -> BackendName:
        return self._backend.name

    def available(self) -> Availability:
        return self._backend.available()

    def can_build(self) -> Availability:
        return self._backend.can_build()

    def target(self) -> str:
        return self._backend.target()

    def build_key(self, source: str) -> str:
        """Another key for each compiler and version of it."""
        parts = (self._backend.build_key(source), self.compiler.label, self.compiler.implementation.version)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def build(self, source: str, folder: Path, limits: BuildLimits) -> CompileResult:
        """In this process: see Backend.build."""
        return self.compiler.build(build_request(self, source, folder, limits.build_seconds))

    def device_facts(self) -> DeviceFacts:
        return self._backend.device_facts()

    def ceilings(self) -> Ceilings:
        return self._backend.ceilings()

    def occupancy(self, resources: KernelResources, launch: Launch) -> Occupancy | None:
        return self._backend.occupancy(resources, launch)


def build_request(backend: Backend, source: str, folder: Path, seconds: float) -> BuildRequest:
    """The request for a source that is to be built in `folder`, under the name by which its launcher looks for it."""
    return BuildRequest(
        source=source,
        backend=backend.name,
        target=backend.target(),
        folder=folder,
        output=folder / binary_name(source, backend.target()),
        seconds=seconds,
    )


def load_compiler(path: str) -> OtherCompiler:
    """The compiler at an import path, in the build process. It was checked in the main process. Raises HtamError."""
    found = imported(path, f"The compiler {path!r}")
    if isinstance(found, type):
        found = found()
    if not callable(getattr(found, "build", None)):
        raise HtamError(f"The compiler {path!r} has no method build here.", "Check its module.", "tool-misfit")
    return OtherCompiler(label=path, implementation=cast("Compiler", found), path=path)
