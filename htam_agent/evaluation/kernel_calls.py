"""System calls that Python does not offer, by libc; a refusal is an OSError that names the call.

Sources: prctl(2), unshare(2), mount(2), mount_setattr(2), capset(2). Numbers of calls from 424 on are the same on every
architecture.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
SIGKILL = 9
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 1 << 18
SYS_MOUNT_SETATTR = 442
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 1, 2


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """The result of a call. Raises OSError with `what` where it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int) -> None:
    checked(libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def die_with_parent() -> None:
    """Asks the kernel to kill this process when the process that forked it ends. A change of user undoes it."""
    with contextlib.suppress(OSError):
        prctl(PR_SET_PDEATHSIG, SIGKILL)


def unshare(namespace: int, what: str) -> None:
    """A namespace of the own; where only the owner of a user namespace may have it, that one first.

    In the user namespace this user and group keep their numbers, and no others exist.
    """
    library = libc()
    if library.unshare(namespace) == 0:
        return
    user, group = os.geteuid(), os.getegid()
    checked(library.unshare(CLONE_NEWUSER | namespace), f"{what} is refused")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path(f"/proc/self/{name}").write_bytes(text.encode())


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    checked(
        libc().mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()),
        f"mounting {kind or source} at {target}",
    )


def change_mounts(path: str, *, add: int = 0, clear: int = 0, recursive: bool = False) -> None:
    """Sets and clears attributes (MOUNT_ATTR_*) of the mount at `path`, or of all below it too."""
    attributes = struct.pack("QQQQ", add, clear, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    result = libc().syscall(
        SYS_MOUNT_SETATTR, ctypes.c_int(AT_FDCWD), path.encode(), ctypes.c_uint(flags), attributes, ctypes.c_size_t(32)
    )
    checked(int(result), f"changing the mounts at {path}")


def drop_capability_bounds() -> None:
    """No capability can be gained any more. Without the privilege to do so there are none to drop."""
    library = libc()
    for capability in range(64):
        if library.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break  # beyond the last capability, or not privileged


def drop_capabilities() -> None:
    drop_capability_bounds()
    header = struct.pack("Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    checked(libc().capset(header, bytes(24)), "capset")
