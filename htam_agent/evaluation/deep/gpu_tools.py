"""The tools' checks of a CUDA candidate: compute-sanitizer on a small shape, Nsight Compute on the task's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from htam_agent.evaluation.deep import counters, sanitizer
from htam_agent.evaluation.deep.finding import Found, fault, not_done, right
from htam_agent.evaluation.deep.records import DeepPrepared, ShapeCase
from htam_agent.evaluation.deep.workplace import Workplace
from htam_agent.evaluation.files import tail
from htam_agent.verdict import KernelCounters
from htam_agent.words import Verdict

TOOL_SECONDS = 240.0
FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/local/cuda/compute-sanitizer")
LOG = "tool.log"
LOG_BYTES = 4 << 20
MEANS: dict[sanitizer.Tool, Verdict] = {"memcheck": "wrong", "racecheck": "quarantined", "synccheck": "wrong"}
"""An access outside of an allocation, or a barrier that part of a block skips, is a fault whatever came of it. A race
is evidence: the outputs were right each time, and the tool knows only part of the newer ways to synchronise. Reading
memory that nothing wrote (initcheck) is a note: padding is often read and not used."""


def find(name: str) -> str:
    """Path of a tool of the CUDA toolkit; empty where it is not found."""
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), *FOLDERS])
    return shutil.which(name, path=places) or ""


def sanitizer_checks(
    place: Workplace,
    prepared: DeepPrepared,
    case: ShapeCase | None,
    kernels: Sequence[str],
    tools: Sequence[sanitizer.Tool] = sanitizer.TOOLS,
) -> Iterator[Found]:
    """One run of the candidate under each tool. `kernels`: names of its own kernels."""
    program = find("compute-sanitizer")
    for tool in tools:
        if not program:
            yield not_done(tool, "compute-sanitizer is not found (it comes with the CUDA toolkit)")
        elif case is None:
            yield not_done(tool, "it serves no shape that is small enough")
        else:
            yield _sanitized(place, prepared, case, kernels, tool, program)


def _sanitized(
    place: Workplace,
    prepared: DeepPrepared,
    case: ShapeCase,
    kernels: Sequence[str],
    tool: sanitizer.Tool,
    program: str,
) -> Found:
    run, outcomes, folder = place.run(
        prepared,
        [case],
        TOOL_SECONDS,
        tool=sanitizer.command(program, tool, LOG),
        # Each tensor an allocation of its own: in torch's blocks of 2 MiB a neighbour hides what goes beyond an end.
        environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        readable=readable(program),
        keep=False,
    )
    text = tail(folder / LOG, LOG_BYTES)
    answer = sanitizer.parse(text, kernels)
    errors = answer.of_own()
    if errors:
        words = f"{len(errors)} kinds of report, {case.label}: {'; '.join(errors[:3])}"
        verdict = MEANS.get(tool)
        return right(tool, f"note: {words}") if verdict is None else fault(tool, verdict, words)
    if not answer.finished or not outcomes:
        return not_done(tool, f"the tool did not finish: {_why(run.in_words(), text, run.output)}")
    other = len(answer.reports)
    noted = f" ({other} reports about other kernels or warnings)" if other else ""
    return right(tool, f"nothing on {case.elements} elements{noted}")


def counter_check(
    place: Workplace, prepared: DeepPrepared, case: ShapeCase, kernels: Sequence[str]
) -> tuple[Found, list[KernelCounters]]:
    """The counters of the candidate's own kernels in one call with this case, the task's own shape."""
    program = find("ncu")
    if not program:
        return not_done("ncu", "ncu is not found (Nsight Compute comes with the CUDA toolkit)"), []
    run, _, folder = place.run(
        prepared,
        [case],
        TOOL_SECONDS,
        tool=counters.command(program, kernels, LOG),
        readable=readable(program),
        device_first=True,
        keep=False,
    )
    text = tail(folder / LOG, LOG_BYTES)
    found = counters.parse(text)
    if not found:
        why = (
            "this user may not read the GPU's counters (ERR_NVGPUCTRPERM)"
            if counters.DENIED in text + run.output
            else _why(run.in_words(), text, run.output)
        )
        return not_done("ncu", why), []
    return right("ncu", counters.in_words(found)), found


def _why(ended: str, *texts: str) -> str:
    """The last words that a tool left."""
    lines = [line.strip("= ") for text in texts for line in text.splitlines() if line.strip("= ")]
    return f"{ended}; {' '.join(lines[-3:])[-400:]}" if lines else ended


def readable(program: str) -> list[str]:
    """What a process must read under a tool: the folder above it, behind all links (its libraries lie beside it)."""
    return list(dict.fromkeys([str(Path(program).resolve().parent.parent), str(Path(program).parent)]))
