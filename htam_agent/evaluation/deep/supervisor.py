"""Runs one command under confinement and ends everything that it started, however often that forked away.

`python -m htam_agent.evaluation.deep.supervisor ORDER` prints one line of JSON (orders.Ended). This process runs no
foreign code and stays outside the cell: as a child subreaper it inherits every orphan of the command, kills what is
left when the command ends or its time is up, and is itself killed when the process that started it goes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from htam_agent.evaluation.confinement import confine
from htam_agent.evaluation.deep.orders import Ended, SupervisorOrder
from htam_agent.evaluation.kernel_calls import die_with_parent, libc

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.02
SWEEP_SECONDS = 5.0


def supervise(order: SupervisorOrder) -> Ended:
    """Forks, confines and runs the command; waits for it, at most `order.seconds`."""
    libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _become(order, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:  # ends when the command has begun
        layers = pipe.read().decode("utf-8", "replace").splitlines()
    status, timed_out = _wait(child, order.seconds)
    return Ended(
        status=status,
        timed_out=timed_out,
        left_behind=_sweep(),
        active=[line for line in layers if not line.startswith("!")],
        missing=[line[1:] for line in layers if line.startswith("!")],
    )


def _become(order: SupervisorOrder, report: int) -> NoReturn:
    """In the child: into the cell, then into the command."""
    try:
        die_with_parent()
        nothing = os.open("/dev/null", os.O_RDONLY)
        log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, report)
        os.closerange(report + 1, 256)
        os.setsid()
        active, missing = confine(order.cell)
        lines = active + ["!" + line.replace("\n", " ") for line in missing]
        os.write(report, "\n".join(lines).encode()[:4000])
        os.set_inheritable(report, False)
        os.execvpe(order.command[0], order.command, order.cell.environment)
    except BaseException as error:  # noqa: BLE001 - a forked child ends here, whatever it was
        with contextlib.suppress(OSError):
            os.write(2, f"cannot run {order.command[0]}: {error}\n".encode())
    os._exit(127)


def _wait(child: int, seconds: float) -> tuple[int, bool]:
    """The command's status, and whether it had to be killed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            _kill_group(child)
            return status, False
        time.sleep(POLL_SECONDS)
    _kill_group(child)
    return os.waitpid(child, 0)[1], True


def _kill_group(leader: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(leader, signal.SIGKILL)


def _sweep() -> int:
    """Kills and collects orphans until none is left; how many there were."""
    found: set[int] = set()
    deadline = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < deadline:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
        orphans = [int(word) for word in text.split()]
        if not orphans:
            break
        found.update(orphans)
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    return len(found)


def main() -> None:
    """Entry point of the process."""
    die_with_parent()
    order = SupervisorOrder.model_validate_json(Path(sys.argv[1]).read_bytes())
    sys.stdout.write(supervise(order).model_dump_json() + "\n")


if __name__ == "__main__":
    main()
