"""What the main process and the zygote tell each other."""

from __future__ import annotations

from typing import Literal

from htam_agent.evaluation.channel import Letter

WorkerKind = Literal["reference", "candidate", "build"]


class Command(Letter):
    """Main to zygote. `pid` for kill, `log` for the kinds of worker."""

    op: Literal["reference", "candidate", "build", "kill", "stop"]
    pid: int = 0
    log: str = ""


class Report(Letter):
    """Zygote to main. `left_behind`: processes of a dead worker that had to be killed."""

    event: Literal["ready", "started", "exit"]
    pid: int = 0
    status: int = 0
    left_behind: int = 0
