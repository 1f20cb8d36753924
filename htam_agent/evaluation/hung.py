"""What the memory of hangs says of a candidate, and what it is told."""

from __future__ import annotations

from pathlib import Path

from htam_agent.evaluation.files import read_plain
from htam_agent.evaluation.hangs import Hang, hang_key
from htam_agent.evaluation.session import Session
from htam_agent.evaluation.spares import CANDIDATE_FILE
from htam_agent.verdict import Check, CompileResult, RunResult, Speedups
from htam_agent.words import Protocol, Verdict

HANG = "hang: "
"""How the reason of a candidate begins that was killed at a limit."""


def remembered(session: Session, compiled: CompileResult) -> RunResult | None:
    """The verdict of a candidate that hung before under limits as long as these; None when it did not."""
    if session.hangs is None:
        return None
    hang = session.hangs.find(_key(session, compiled), _limits(session))
    if hang is None:
        return None
    reason = f"it hung before and was not run again: {hang.reason}"
    verdicts: dict[Protocol, Verdict] = dict.fromkeys(session.protocols, "failed")
    waited = ", ".join(f"{name} {seconds:g} s" for name, seconds in hang.limits.items())
    detail = f"remembered, under the limits {waited}; longer ones, or the setting hang_memory, try it again"
    return RunResult(
        verdict="failed",
        stage=hang.stage,
        reason=reason,
        protocols=verdicts,
        speedup=Speedups(reason="the verdict is failed"),
        checks=[Check(name=hang.stage, passed=False, detail=reason), Check(name="hang", passed=False, detail=detail)],
    )


def remember(session: Session, compiled: CompileResult, result: RunResult) -> None:
    """Keeps a hang; every other result is none of its business."""
    if session.hangs is not None and result.verdict == "failed" and result.reason.startswith(HANG):
        hang = Hang(stage=result.stage, reason=result.reason, limits=_limits(session))
        session.hangs.keep(_key(session, compiled), hang)


def _key(session: Session, compiled: CompileResult) -> str:
    loaded = session.loaded
    return hang_key(
        read_plain(Path(compiled.folder) / CANDIDATE_FILE).decode("utf-8", "replace"),
        loaded.operator.model_dump_json(),
        loaded.blueprint.model_dump_json(),
        session.backend.build_key(""),
        session.device_name.partition(":")[0],
    )


def _limits(session: Session) -> dict[str, float]:
    limits = session.limits
    return {
        "build": limits.build_seconds,
        "load": limits.load_seconds,
        "run": limits.run_seconds,
        "total": limits.total_seconds,
    }
