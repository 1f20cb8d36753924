"""A mount namespace: everything is read-only, other people's folders are empty, and what may be written is capped.

Folders that hold users' files (homes, /tmp, ...) and folders that another user could not pass on the way to what is
needed are covered by empty file systems in memory; what a candidate needs of them is put back in place. This is what
bubblewrap does, for a process that was forked and not started, so that torch stays imported.
Sources: mount_namespaces(7), mount(2), mount_setattr(2), tmpfs(5).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from htam_agent.evaluation.kernel_calls import (
    CLONE_NEWNS,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    change_mounts,
    mount,
    unshare,
)

PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")
HIDDEN = ("/home", "/root", "/run", "/mnt", "/media", "/srv")
PRIVATE_BYTES = 64 << 20
"""Room in each private temporary folder; those of a candidate lie in its own folder."""


def enter_own_files(*, folder: str, readable: Sequence[str], room: int, own_proc: bool) -> None:
    """Leaves the machine's files. `folder` is the one that may be written: up to `room` bytes in memory that nobody
    else sees, or in place where `room` is 0. `readable` must still be found. `own_proc`: this process has a PID
    namespace, and /proc is to show that. Raises OSError where a mount is refused.
    """
    unshare(CLONE_NEWNS, "a mount namespace")
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    needed = [path for path in dict.fromkeys([folder, *readable]) if os.path.exists(path)]
    covered = _to_cover(needed)
    kept = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in needed if _inside(path, covered)}
    for cover in covered:
        size = PRIVATE_BYTES if cover in PRIVATE else 1 << 20
        mode = "1777" if cover in PRIVATE else "755"
        mount("tmpfs", cover, "tmpfs", MS_NOSUID | MS_NODEV, f"mode={mode},size={size}")
    for path in sorted(kept):
        _put_back(path, kept[path])
    for descriptor in kept.values():
        os.close(descriptor)
    change_mounts("/", add=MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, recursive=True)
    for path in covered:
        if path in PRIVATE:
            change_mounts(path, clear=MOUNT_ATTR_RDONLY)
    _open_proc(own_proc)
    _open_folder(folder, room)


def _to_cover(needed: Sequence[str]) -> list[str]:
    """Folders to cover, outer ones only and in order."""
    found = {path for path in (*PRIVATE, *HIDDEN) if Path(path).is_dir() and not Path(path).is_symlink()}
    found |= {ancestor for path in needed for ancestor in _closed_ancestors(path)}
    return [path for path in sorted(found) if not _inside(path, [other for other in found if other != path])]


def _closed_ancestors(path: str) -> Iterator[str]:
    """The outermost folder on the way to `path` that another user may not pass."""
    for ancestor in reversed(Path(path).parents):
        if not ancestor.stat().st_mode & stat.S_IXOTH:
            yield str(ancestor)
            return


def _inside(path: str, folders: Sequence[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _put_back(path: str, descriptor: int) -> None:
    """Shows what `descriptor` has opened at `path` again. What lies inside something put back is there already."""
    target = Path(path)
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        target.mkdir()
    else:
        target.touch()
    mount(f"/proc/self/fd/{descriptor}", path, "", MS_BIND | MS_REC)


def _open_proc(own_proc: bool) -> None:
    """/proc may be written: CUDA names its threads there. What is not this process's own its user keeps it from."""
    from htam_agent.evaluation.own_processes import mount_own_proc

    if own_proc:
        try:
            mount_own_proc()
        except OSError:  # refused where the machine's own is partly hidden, as in most containers: then that one stays
            own_proc = False
    if not own_proc:
        change_mounts("/proc", clear=MOUNT_ATTR_RDONLY)


def _open_folder(folder: str, room: int) -> None:
    if room:
        mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=700,size={room}")
        return
    mount(folder, folder, "", MS_BIND | MS_REC)
    change_mounts(folder, clear=MOUNT_ATTR_RDONLY)
