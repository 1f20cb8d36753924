"""Another user: a process that root started goes on as a user that owns nothing but its folder. Source: setresuid(2).

Every process gets a number of its own, so that none may touch another and the limit on processes counts its alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from htam_agent.evaluation.kernel_calls import (
    PR_SET_DUMPABLE,
    die_with_parent,
    drop_capability_bounds,
    prctl,
)

FIRST_USER, USERS = 61184, 4096
"""Numbers that systemd keeps for users that exist as long as a service does: nobody else has them."""


def become_other_user(folder: str, number: int, readable: Sequence[str]) -> None:
    """Hands `folder` over to the user that `number` gives and becomes that user.

    `readable` must be readable to everybody: the interpreter and its packages. Raises OSError, this user still being
    root, where that is not so or where this process is not root.
    """
    if os.geteuid() != 0:
        raise OSError("only root can become another user; this one is kept")
    user = FIRST_USER + number % USERS
    os.setresuid(user, -1, -1)  # os.access answers for the real user
    try:
        closed = [path for path in readable if Path(path).exists() and not os.access(path, os.R_OK | os.X_OK)]
        through = os.access(Path(folder).parent, os.X_OK)
    finally:
        os.setresuid(0, -1, -1)
    if closed or not through:
        raise OSError(f"another user could not read {closed[0] if closed else folder}")
    drop_capability_bounds()
    os.chown(folder, user, user)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # The change of user took both away; without the first its own /proc is closed to it, and CUDA needs that.
    prctl(PR_SET_DUMPABLE, 1)
    die_with_parent()
