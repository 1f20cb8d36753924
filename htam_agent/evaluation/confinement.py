"""Layers of confinement round a process that is about to run hostile code.

`confine` is called in a freshly forked, single-threaded child. Every layer is tried by itself; what could not be had is
returned by name with the reason and never assumed. Sources: landlock(7), unshare(2), prctl(2), capabilities(7),
setrlimit(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import importlib.util
import os
import resource
import struct
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field

from htam_agent.evaluation.channel import Letter

LAYERS = (
    "process-group", "empty-environment", "own-folder", "limits", "no-network", "no-capabilities", "no-new-privileges",
    "landlock",
)  # fmt: skip

PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 38, 1, 24
CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
SYS_CREATE_RULESET, SYS_ADD_RULE, SYS_RESTRICT_SELF = 444, 445, 446
READ = 0b1100
"""Landlock: READ_FILE and READ_DIR."""
EXECUTE, WRITE, TRUNCATE, IOCTL = 1, 1 << 1, 1 << 14, 1 << 15
FILE_RIGHTS = EXECUTE | WRITE | 1 << 2 | TRUNCATE | IOCTL
FS_RIGHTS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file-system rights that a landlock version knows (bit 0 up)."""

READABLE_SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/sys", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
    "/etc/alternatives", "/etc/localtime", "/etc/nsswitch.conf", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
    "/proc/version", "/proc/devices", "/proc/driver", "/proc/modules", "/proc/filesystems", "/proc/sys",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
CUDA_DEVICES = ("/dev/nvidia*",)


class Cell(Letter):
    """What a confined process is allowed. `memory_bytes` limits its address space beyond what it has already (0: no
    limit, always so for CUDA, which reserves terabytes of addresses)."""

    folder: str
    writable: list[str] = Field(default_factory=list)
    readable: list[str] = Field(default_factory=list)
    cuda: bool = False
    environment: dict[str, str] = Field(default_factory=dict)
    cpu_seconds: int = 600
    file_bytes: int = 256 << 20
    memory_bytes: int = 0
    processes: int = 512
    off: list[str] = Field(default_factory=list)
    """Layers that the user turned off (HTAM_CONFINEMENT_OFF); they are reported as missing."""


class Unavailable(Exception):
    """A layer that this machine does not grant; the message is the reason."""


def confine(cell: Cell) -> tuple[list[str], list[str]]:
    """Confines this process for good. Returns the active layers and the missing ones as "layer: reason"."""
    steps: dict[str, Callable[[], None]] = {
        "process-group": _own_session,
        "empty-environment": lambda: _set_environment(cell),
        "own-folder": lambda: os.chdir(cell.folder),
        "limits": lambda: _set_limits(cell),
        "no-network": _leave_network,
        "no-capabilities": _drop_capabilities,
        "no-new-privileges": lambda: _prctl(PR_SET_NO_NEW_PRIVS, 1),
        "landlock": lambda: _apply_landlock(cell),
    }
    active, missing = [], []
    for layer, step in steps.items():
        try:
            if layer in cell.off:
                raise Unavailable("turned off by HTAM_CONFINEMENT_OFF")
            step()
            active.append(layer)
        except (OSError, ValueError, Unavailable) as error:
            missing.append(f"{layer}: {error}")
    return active, missing


def confinement_report() -> tuple[list[str], list[str]]:
    """Active and missing layers on this machine, tried in a child process (for `htam doctor`)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            active, missing = confine(Cell(folder="/usr"))
            os.write(writing, "\n".join(active + ["!" + line.replace("\n", " ") for line in missing]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().decode().splitlines()
    os.waitpid(child, 0)
    if not lines:
        return [], [f"{layer}: the trial process died" for layer in LAYERS]
    return [line for line in lines if line[0] != "!"], [line[1:] for line in lines if line[0] == "!"]


def die_with_parent() -> None:
    """Asks the kernel to kill this process when the process that forked it ends."""
    with contextlib.suppress(OSError):
        _prctl(PR_SET_PDEATHSIG, 9)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, value: int) -> None:
    _checked(_libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def _own_session() -> None:
    if os.getsid(0) != os.getpid():
        os.setsid()


def _set_environment(cell: Cell) -> None:
    os.environ.clear()
    os.environ.update(cell.environment)
    tempfile.tempdir = None  # found again from TMPDIR: the zygote may have looked before


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
        with contextlib.suppress(OSError):
            if os.stat(folder).st_uid == os.getuid():
                total += len(os.listdir(f"{folder}/task"))
    return total


def _leave_network() -> None:
    libc = _libc()
    if libc.unshare(CLONE_NEWNET) == 0:
        return
    user, group = os.getuid(), os.getgid()
    _checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNET), "a network namespace is refused")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def _drop_capabilities() -> None:
    libc = _libc()
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break  # beyond the last capability, or not privileged: then there are none to drop
    header = struct.pack("Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    _checked(libc.capset(header, bytes(24)), "capset")


def landlock_version() -> int:
    """The kernel's landlock version; 0 where it has none."""
    return max(0, int(_libc().syscall(SYS_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def _apply_landlock(cell: Cell) -> None:
    version = landlock_version()
    if version == 0:
        raise Unavailable("the kernel has no landlock")
    handled = (1 << FS_RIGHTS_OF_ABI[min(version, 5)]) - 1
    network = 0b11 if version >= 4 else 0  # TCP bind and connect
    scoped = 0b11 if version >= 6 else 0  # abstract sockets and signals to processes outside
    attributes = struct.pack("QQQ", handled, network, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    libc = _libc()
    ruleset = _checked(
        libc.syscall(SYS_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0)), "landlock ruleset"
    )
    read_only = [*READABLE_SYSTEM, *python_folders(), *cell.readable, f"/proc/{os.getpid()}"]
    for path in read_only:
        _allow(libc, ruleset, path, (READ | EXECUTE) & handled)
    for pattern in (*DEVICES, *(CUDA_DEVICES if cell.cuda else ())):
        for path in glob.glob(pattern):
            _allow(libc, ruleset, path, (READ | WRITE | TRUNCATE | IOCTL) & handled)
    if cell.cuda:
        # cuInit names its threads through /proc/self/task/*/comm and fails with error 304 where it cannot.
        _allow(libc, ruleset, f"/proc/{os.getpid()}", (READ | WRITE | TRUNCATE) & handled)
    for path in (cell.folder, *cell.writable):
        _allow(libc, ruleset, path, handled & ~IOCTL)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _checked(libc.syscall(SYS_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)), "landlock restrict")
    os.close(ruleset)


def python_folders() -> Sequence[str]:
    """Where this interpreter and its packages lie."""
    paths = sysconfig.get_paths()
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, paths["purelib"], paths["platlib"], paths["stdlib"]}
    folders |= set(package_folders())
    folders |= {str(Path(folder).resolve()) for folder in folders}
    return sorted(folders)


NEEDED_PACKAGES = ("torch", "numpy", "pydantic", "typing_extensions", "cloudpickle", "cuda", "nvidia", "triton")


@functools.cache
def package_folders() -> tuple[str, ...]:
    """The folders on sys.path that hold what workers import. A user may have put packages where the interpreter does
    not look by itself (PYTHONPATH); other entries of sys.path, such as the current folder, are not for a candidate to
    read.
    """
    folders: list[str] = []
    for name in NEEDED_PACKAGES:
        spec = importlib.util.find_spec(name)
        places: list[str | None] = []
        if spec is not None:
            places += spec.submodule_search_locations or [spec.origin]
        folders += [str(Path(place).parent) for place in places if place is not None]
    return tuple(dict.fromkeys(folders))


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    """Adds a rule; a path that does not exist needs none."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= FILE_RIGHTS
        rule = struct.pack("=Qi", rights, descriptor)
        _checked(
            libc.syscall(SYS_ADD_RULE, ruleset, ctypes.c_int(1), rule, ctypes.c_uint32(0)), f"landlock rule {path}"
        )
    finally:
        os.close(descriptor)
