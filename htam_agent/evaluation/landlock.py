"""Landlock: the files that a process may touch, whoever it is. Source: landlock(7)."""

from __future__ import annotations

import ctypes
import glob
import os
import struct
from collections.abc import Sequence

from htam_agent.evaluation.kernel_calls import PR_SET_NO_NEW_PRIVS, checked, libc, prctl

SYS_CREATE_RULESET, SYS_ADD_RULE, SYS_RESTRICT_SELF = 444, 445, 446
READ = 0b1100
"""READ_FILE and READ_DIR."""
EXECUTE, WRITE, TRUNCATE, IOCTL = 1, 1 << 1, 1 << 14, 1 << 15
FILE_RIGHTS = EXECUTE | WRITE | 1 << 2 | TRUNCATE | IOCTL
FS_RIGHTS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file-system rights that a landlock version knows (bit 0 up)."""


def landlock_version() -> int:
    """The kernel's landlock version; 0 where it has none."""
    return max(0, int(libc().syscall(SYS_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def restrict_files(
    *, readable: Sequence[str], devices: Sequence[str], renamable: Sequence[str], writable: Sequence[str]
) -> None:
    """Leaves this thread, and all that it starts, these paths and no others.

    `readable` may be read and executed, `devices` (patterns) read, written and controlled, the files in `renamable`
    read and written, and in `writable` everything is allowed but control of devices. TCP, abstract sockets and signals
    to processes outside are refused where the kernel's version can. Raises OSError where there is no landlock.
    """
    version = landlock_version()
    if version == 0:
        raise OSError("the kernel has no landlock")
    handled = (1 << FS_RIGHTS_OF_ABI[min(version, 5)]) - 1
    network = 0b11 if version >= 4 else 0  # TCP bind and connect
    scoped = 0b11 if version >= 6 else 0  # abstract sockets and signals to processes outside
    attributes = struct.pack("QQQ", handled, network, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = checked(
        int(libc().syscall(SYS_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))),
        "landlock ruleset",
    )
    for path in readable:
        _allow(ruleset, path, (READ | EXECUTE) & handled)
    for pattern in devices:
        for path in glob.glob(pattern):
            _allow(ruleset, path, (READ | WRITE | TRUNCATE | IOCTL) & handled)
    for path in renamable:
        _allow(ruleset, path, (READ | WRITE | TRUNCATE) & handled)
    for path in writable:
        _allow(ruleset, path, handled & ~IOCTL)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    checked(int(libc().syscall(SYS_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))), "landlock restrict")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Adds a rule; a path that does not exist needs none."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= FILE_RIGHTS
        rule = struct.pack("=Qi", rights, descriptor)
        result = libc().syscall(SYS_ADD_RULE, ruleset, ctypes.c_int(1), rule, ctypes.c_uint32(0))
        checked(int(result), f"landlock rule {path}")
    finally:
        os.close(descriptor)
