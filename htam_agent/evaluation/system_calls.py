"""Seccomp: system calls that no kernel needs and that reach other processes, the machine or more rights.

A classic BPF program refuses them with EPERM and lets everything else pass; calls of another architecture's table kill
the process. Sources: seccomp(2), the kernel's include/uapi/linux/{seccomp,filter,bpf_common}.h and the system call
tables arch/x86/entry/syscalls/syscall_64.tbl and scripts/syscall.tbl (generic).
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

from htam_agent.evaluation.kernel_calls import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    PR_SET_NO_NEW_PRIVS,
    checked,
    libc,
    prctl,
)

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENT_AT = 0, 4, 16
X32_BIT = 0x40000000
NEW_NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | 0x02000000
ALLOWED_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: those that a network namespace contains (AF_VSOCK it does not)."""

SAME_EVERYWHERE = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442, "process_mrelease": 448, "open_tree_attr": 467,
}  # fmt: skip
X86_64 = {
    "ptrace": 101, "syslog": 103, "pivot_root": 155, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165,
    "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172,
    "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179, "lookup_dcookie": 212,
    "clock_settime": 227, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256,
    "unshare": 272, "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303,
    "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
    "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
AARCH64 = {
    "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89,
    "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116,
    "ptrace": 117, "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "add_key": 217,
    "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "migrate_pages": 238, "move_pages": 239,
    "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "setns": 268,
    "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280, "userfaultfd": 282,
    "kexec_file_load": 294,
}  # fmt: skip
TABLES = {
    # machine: (AUDIT_ARCH, refused, clone, socket)
    "x86_64": (0xC000003E, X86_64, 56, 41),
    "aarch64": (0xC00000B7, AARCH64, 220, 198),
}
CLONE3 = 435


def restrict_system_calls() -> None:
    """Installs the filter on this thread and all that it starts. Raises OSError where it cannot be had."""
    machine = platform.machine()
    if machine not in TABLES:
        raise OSError(f"no table of system calls for {machine}")
    program = filter_program(machine)
    buffer = ctypes.create_string_buffer(program, len(program))
    description = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    checked(libc().prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), description, 0, 0), "seccomp")


def refused_numbers(machine: str) -> dict[str, int]:
    """The refused calls of a machine ("x86_64" or "aarch64"), by name."""
    return SAME_EVERYWHERE | TABLES[machine][1]


def filter_program(machine: str) -> bytes:
    """The filter as an array of struct sock_filter.

    A thread's creation by clone3 is answered with ENOSYS: its flags lie in memory, where a filter cannot look, and
    libraries then take clone.
    """
    architecture, _, clone, socket = TABLES[machine]
    refuse = _step(RETURN, ERRNO | errno.EPERM)
    allow = _step(RETURN, ALLOW)
    steps = [
        _step(LOAD, ARCHITECTURE_AT),
        _step(JUMP_EQUAL, architecture, 1, 0),
        _step(RETURN, KILL),
        _step(LOAD, NUMBER_AT),
    ]
    if machine == "x86_64":
        steps += [_step(JUMP_GREATER_EQUAL, X32_BIT, 0, 1), _step(RETURN, KILL)]
    for number in sorted(refused_numbers(machine).values()):
        steps += [_step(JUMP_EQUAL, number, 0, 1), refuse]
    steps += [_step(JUMP_EQUAL, CLONE3, 0, 1), _step(RETURN, ERRNO | errno.ENOSYS)]
    steps += [
        _step(JUMP_EQUAL, clone, 0, 4),
        _step(LOAD, ARGUMENT_AT),
        _step(JUMP_ANY_BIT, NEW_NAMESPACES, 0, 1),
        refuse,
        allow,
    ]
    families = [_step(JUMP_EQUAL, family, len(ALLOWED_FAMILIES) - at, 0) for at, family in enumerate(ALLOWED_FAMILIES)]
    steps += [_step(JUMP_EQUAL, socket, 0, len(families) + 2), _step(LOAD, ARGUMENT_AT), *families, refuse, allow]
    return b"".join(steps)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
