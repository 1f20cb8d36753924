"""Layers of confinement round a process that is about to run hostile code.

`confine` is called in a freshly forked, single-threaded child. Every layer is tried by itself; what could not be had is
returned by name with the reason and never assumed. Each layer's own file names its sources. bubblewrap, which builds
the same from outside, starts a program and cannot wrap a process that was forked to keep torch imported.
"""

from __future__ import annotations

import glob
import os
import resource
import tempfile
from collections.abc import Callable
from contextlib import suppress

from pydantic import Field

from htam_agent.evaluation.channel import Letter
from htam_agent.evaluation.kernel_calls import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWUTS,
    PR_SET_NO_NEW_PRIVS,
    drop_capabilities,
    prctl,
    unshare,
)
from htam_agent.evaluation.landlock import restrict_files
from htam_agent.evaluation.other_user import become_other_user
from htam_agent.evaluation.own_files import enter_own_files
from htam_agent.evaluation.own_processes import enter_own_processes
from htam_agent.evaluation.package_folders import python_folders
from htam_agent.evaluation.system_calls import restrict_system_calls

MEANINGS = {
    "own-processes": "a PID namespace: it sees no process but its own, and all of them end with it",
    "process-group": "a session of its own, killed as a whole",
    "no-network": "a network namespace without any interface",
    "own-ipc": "an IPC namespace: no shared memory or queues of others",
    "own-host-name": "a UTS namespace: the machine's name cannot be changed",
    "own-files": "a mount namespace: all read-only or empty but its folder, which is limited in size",
    "other-user": "a user of its own, which owns nothing else",
    "empty-environment": "none of the user's variables, keys or tokens",
    "one-gpu": "no GPU but the one on which it is judged, and none at all on a processor",
    "own-folder": "it works in its own folder",
    "limits": "processor time, file size, processes and, on the CPU, memory",
    "no-capabilities": "none of root's powers",
    "no-new-privileges": "no program makes it more than it is",
    "landlock": "files, devices, TCP and signals by an allow list of the kernel",
    "system-calls": "seccomp: no access to other processes' memory, no mounts, namespaces, modules, keys or io_uring",
}
"""Every layer, in the order in which they are taken, and what it means."""
LAYERS = tuple(MEANINGS)

READABLE_SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/sys", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
    "/etc/alternatives", "/etc/localtime", "/etc/nsswitch.conf", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
    "/proc/version", "/proc/devices", "/proc/driver", "/proc/modules", "/proc/filesystems", "/proc/sys",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
CUDA_DEVICES = ("/dev/nvidia*",)
"""Of all GPUs."""


class Cell(Letter):
    """What a confined process is allowed. `memory_bytes` limits its address space beyond what it has already (0: no
    limit, always so for CUDA, which reserves terabytes of addresses)."""

    folder: str
    writable: list[str] = Field(default_factory=list)
    readable: list[str] = Field(default_factory=list)
    cuda: bool = False
    gpu_files: list[str] = Field(default_factory=lambda: list(CUDA_DEVICES))
    """Patterns of the device files that CUDA may open (visible.py)."""
    gpu_missing: str = ""
    """Why GPUs besides its own are not kept out; empty when they are."""
    environment: dict[str, str] = Field(default_factory=dict)
    cpu_seconds: int = 600
    file_bytes: int = 256 << 20
    memory_bytes: int = 0
    processes: int = 512
    room: int = 0
    """Bytes that its folder may hold, in memory that is gone with the process; 0: the folder itself, without a cap. It
    needs the layer own-files."""
    off: list[str] = Field(default_factory=list)
    """Layers that the user turned off (HTAM_CONFINEMENT_OFF); they are reported as missing."""


def confine(cell: Cell) -> tuple[list[str], list[str]]:
    """Confines this process for good. Returns the active layers and the missing ones as "layer: reason".

    With own-processes the caller goes on in another process than it was: its parent waits for it and ends as it ends.
    """
    os.environ.update(cell.environment)
    outer = os.getpid()
    active: list[str] = []
    readable = [*python_folders(), *cell.readable]
    steps: dict[str, Callable[[], None]] = {
        "own-processes": lambda: _enter_own_processes(cell),
        "process-group": _own_session,
        "no-network": lambda: unshare(CLONE_NEWNET, "a network namespace"),
        "own-ipc": lambda: unshare(CLONE_NEWIPC, "an IPC namespace"),
        "own-host-name": lambda: unshare(CLONE_NEWUTS, "a UTS namespace"),
        "own-files": lambda: enter_own_files(
            folder=cell.folder, readable=readable, room=cell.room, own_proc="own-processes" in active
        ),
        "other-user": lambda: become_other_user(cell.folder, outer, readable),
        "empty-environment": lambda: _set_environment(cell),
        "one-gpu": lambda: _see_one_gpu(cell),
        "own-folder": lambda: os.chdir(cell.folder),
        "limits": lambda: _set_limits(cell),
        "no-capabilities": drop_capabilities,
        "no-new-privileges": lambda: prctl(PR_SET_NO_NEW_PRIVS, 1),
        "landlock": lambda: _apply_landlock(cell, readable),
        "system-calls": restrict_system_calls,
    }
    missing = []
    for layer, step in steps.items():
        if layer in cell.off:
            missing.append(f"{layer}: turned off by HTAM_CONFINEMENT_OFF")
            continue
        try:
            step()
            active.append(layer)
        except Exception as error:  # noqa: BLE001 - whatever keeps a layer from being taken, it is missing, and said
            missing.append(f"{layer}: {error}")
    return active, missing


def confinement_report() -> tuple[list[str], list[str]]:
    """Active and missing layers on this machine, tried in a child process (for `htam doctor`)."""
    with tempfile.TemporaryDirectory(prefix="htam-doctor-") as folder:
        os.chmod(folder, 0o755)
        lines = _try_in_child(Cell(folder=_made(folder, "cell"), room=1 << 20))
    if not lines:
        return [], [f"{layer}: the trial process died" for layer in LAYERS]
    return [line for line in lines if line[0] != "!"], [line[1:] for line in lines if line[0] == "!"]


def _made(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    os.mkdir(path)
    return path


def _try_in_child(cell: Cell) -> list[str]:
    """The active layers, and the missing ones behind an exclamation mark."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            active, missing = confine(cell)
            os.write(writing, "\n".join(active + ["!" + line.replace("\n", " ") for line in missing]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().decode().splitlines()
    os.waitpid(child, 0)
    return lines


def _enter_own_processes(cell: Cell) -> None:
    if cell.cuda and "own-files" in cell.off:
        raise OSError("CUDA needs the layer own-files beside it")
    enter_own_processes(with_proc=cell.cuda)


def _own_session() -> None:
    if os.getsid(0) != os.getpid():
        os.setsid()


def _set_environment(cell: Cell) -> None:
    for name in os.environ.keys() - cell.environment.keys():
        del os.environ[name]
    tempfile.tempdir = None  # found again from TMPDIR: the zygote may have looked before


def _see_one_gpu(cell: Cell) -> None:
    """The environment names the device already: CUDA reads it later, when this process first asks for it."""
    if cell.gpu_missing:
        raise OSError(cell.gpu_missing)


def _set_limits(cell: Cell) -> None:
    limits = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cell.cpu_seconds),
        (resource.RLIMIT_FSIZE, cell.file_bytes),
        (resource.RLIMIT_NOFILE, 1024),
    ]
    if os.getuid() != 0:  # the kernel does not count root's processes, and a user's own others count too
        limits.append((resource.RLIMIT_NPROC, cell.processes + _threads_of_user()))
    if cell.memory_bytes and not cell.cuda:
        with open("/proc/self/statm", encoding="ascii") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        limits.append((resource.RLIMIT_AS, mapped + cell.memory_bytes))
    for kind, value in limits:
        _, hard = resource.getrlimit(kind)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _threads_of_user() -> int:
    total = 0
    for folder in glob.glob("/proc/[0-9]*"):
        with suppress(OSError):
            if os.stat(folder).st_uid == os.getuid():
                total += len(os.listdir(f"{folder}/task"))
    return total


def _gpu_files(cell: Cell) -> list[str]:
    if not cell.cuda:
        return []
    return list(CUDA_DEVICES) if "one-gpu" in cell.off else cell.gpu_files


def _apply_landlock(cell: Cell, readable: list[str]) -> None:
    restrict_files(
        readable=[*READABLE_SYSTEM, *readable, "/proc/self"],
        devices=[*DEVICES, *_gpu_files(cell)],
        # cuInit names its threads through /proc/self/task/*/comm and fails with error 304 where it cannot.
        renamable=["/proc/self"] if cell.cuda else [],
        writable=[cell.folder, *cell.writable],
    )
