"""The three tools as the nodes use them: through `tool.invoke`, with the answer stored before the state moves on.

An answer that is already on disk (the process was killed after the tool, before the checkpoint) is taken as it is, so
that no candidate is judged twice.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from langchain_core.messages import ToolMessage
from pydantic import BaseModel

from htam_agent.coding.evidence import failure_of_build, failure_of_run
from htam_agent.coding.parsing import device_source
from htam_agent.errors import InfrastructureError
from htam_agent.graph.events import emit
from htam_agent.graph.requests import stored_code
from htam_agent.tools.traffic import with_traffic
from htam_agent.verdict import CompileResult, ProfileResult, RunResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from langgraph.runtime import Runtime

    from htam_agent.graph.context import Context, Session
    from htam_agent.graph.state import Candidate

T = TypeVar("T", bound=BaseModel)


def call_tool(session: Session, name: str, kernel: str, kind: type[T]) -> T:
    """Invoke one of the session's tools on a candidate file and return its typed artifact.

    Raises InfrastructureError when the tool answers without one.
    """
    tool = session.tools[name]
    message = tool.invoke({"name": tool.name, "args": {"kernel": kernel}, "id": f"{name}-call", "type": "tool_call"})
    if isinstance(message, ToolMessage) and isinstance(message.artifact, kind):
        return message.artifact
    raise InfrastructureError(
        f"The tool {name!r} ({tool.name}) answered without a {kind.__name__} artifact.",
        "Check the tool that is configured for it.",
        "tool-answer",
    )


def _answer(
    session: Session, candidate: Candidate, name: str, kind: type[T], finished: Callable[[T], T] = lambda answer: answer
) -> tuple[T, Candidate]:
    """The tool's answer for this attempt, from disk or from the tool and then `finished`; the candidate with the time
    added."""
    folder = session.folder.candidate(candidate.step, candidate.index, candidate.attempt)
    record = f"{folder.relative_to(session.folder.root)}/{name}.json"
    stored = session.folder.read(record, kind)
    if stored is not None:
        # A process that was killed did this work: its time is the run's too.
        answer, spent = stored, stored.seconds if isinstance(stored, CompileResult | RunResult) else 0.0
    else:
        started = time.monotonic()
        answer = finished(call_tool(session, name, str(folder / "kernel.py"), kind))
        spent = time.monotonic() - started
        session.folder.write(record, answer)
    return answer, candidate.model_copy(update={"tool_seconds": candidate.tool_seconds + spent})


def compile_candidate(session: Session, runtime: Runtime[Context], candidate: Candidate) -> Candidate:
    """Build one candidate: built, or broken with the compiler's words."""
    answer, candidate = _answer(session, candidate, "compile", CompileResult)
    text = f"built in {answer.seconds:.2f} s" if answer.ok else f"{answer.stage}: {answer.reason or 'does not build'}"
    emit(runtime, "compiled", text, step=candidate.step, candidate=candidate.index, attempt=candidate.attempt)
    if answer.ok:
        return candidate.model_copy(update={"status": "built"})
    failure = failure_of_build(answer, _device_source(session, candidate))
    return candidate.model_copy(update={"status": "broken", "verdict": "failed", "failure": failure})


def run_candidate(session: Session, runtime: Runtime[Context], candidate: Candidate) -> Candidate:
    """Judge one candidate: correct with its times, or broken with the evaluator's evidence."""
    answer, candidate = _answer(session, candidate, "run", RunResult)
    emit(
        runtime,
        "judged",
        answer.verdict + (f" ({answer.reason})" if answer.reason else ""),
        step=candidate.step,
        candidate=candidate.index,
        attempt=candidate.attempt,
        speedup=answer.speedup.best,
    )
    if answer.verdict == "correct":
        changes = {
            "status": "correct",
            "speedup": answer.speedup,
            "time_ms": answer.times_ms.candidate,
            "failure": None,
        }
        return candidate.model_copy(update={**changes, "verdict": "correct"})
    failure = failure_of_run(answer)
    return candidate.model_copy(update={"status": "broken", "verdict": answer.verdict, "failure": failure})


def _device_source(session: Session, candidate: Candidate) -> str:
    """What the compiler was given, for the lines that its errors name; empty where it cannot be read off the file."""
    code = stored_code(session, candidate.step, candidate.index, candidate.attempt)
    return device_source(code.source) if code else ""


def profile_candidate(session: Session, runtime: Runtime[Context], candidate: Candidate) -> Candidate:
    """Profile one correct candidate, with what its plan is known to move."""
    code = stored_code(session, candidate.step, candidate.index, candidate.attempt)
    moved = code.moved_bytes if code else None

    def finished(profile: ProfileResult) -> ProfileResult:
        if moved is None or candidate.time_ms is None:
            return profile
        return with_traffic(profile, moved, session.operator, session.bench.ceilings, candidate.time_ms)

    answer, candidate = _answer(session, candidate, "profile", ProfileResult, finished)
    emit(
        runtime, "profiled", answer.diagnosis, step=candidate.step, candidate=candidate.index, attempt=candidate.attempt
    )
    return candidate.model_copy(update={"status": "profiled"})
