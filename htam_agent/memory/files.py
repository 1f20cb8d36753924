"""Files that a user asked for, beside the store: packs and pictures."""

from __future__ import annotations

import errno
from pathlib import Path

from htam_agent.errors import StoreError


def unwritable(what: str, path: Path, error: OSError) -> StoreError:
    """The sentence for a file that cannot be written; `what` names its kind."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StoreError(
        f"The {what} {str(path)!r} cannot be written: {error.strerror or error}.",
        "Free some space, or give a path on another disk."
        if full
        else "Give a path in a folder that you may write to.",
        "disk-full" if full else "file-not-writable",
    )
