"""Backends by name."""

from __future__ import annotations

from typing import Literal

from htam_agent.backends.base import Backend
from htam_agent.backends.cpp import CppBackend
from htam_agent.backends.cuda import CudaBackend
from htam_agent.errors import BackendUnavailable
from htam_agent.words import Backend as BackendName


def backend(name: BackendName, *, device: int = 0) -> Backend:
    """The backend of this name, whether or not it works here. Raises BackendUnavailable for an unknown name."""
    if name == "cpp":
        return CppBackend()
    if name == "cuda":
        return CudaBackend(device=device)
    raise BackendUnavailable(f"There is no backend {name!r}.", "Choose cuda, cpp or auto.", "backend-unknown")


def require_backend(name: BackendName, *, device: int = 0) -> Backend:
    """The backend, or BackendUnavailable with its reason when kernels cannot be built and run here."""
    found = backend(name, device=device)
    answer = found.available()
    if not answer.ok:
        raise BackendUnavailable(f"The backend {name} does not work on this machine: {answer.reason}.", answer.remedy)
    return found


def choose_backend(wanted: BackendName | Literal["auto"], *, device: int = 0) -> Backend:
    """`auto` takes cuda where a GPU answers, else cpp. Raises BackendUnavailable when what is wanted does not work."""
    if wanted != "auto":
        return require_backend(wanted, device=device)
    cuda = backend("cuda", device=device)
    return cuda if cuda.available().ok else require_backend("cpp")
