"""Failures of candidates as a coder gets them: kind, cause, and the evidence shortened to what matters.

Of a compiler's log: the first errors, each with its lines of the source. Of a judgement: where and how outputs differ,
then each failed check once. What is left out is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from htam_agent.coding.causes import cause_of_build, cause_of_run
from htam_agent.verdict import CompileResult, Failure, FailureKind, RunResult

LIMIT = 4000
"""Characters of one failure's evidence: some 1000 tokens."""
ERRORS = 3
"""Compiler errors that are shown with their source."""
AROUND = 2
"""Source lines shown before and after the one that an error names."""
LINE = 300
DETAIL = 1200
CHECKS = 6

_ERROR = re.compile(
    r"^(?P<file>[^\s:(][^:(\n]*)[:(](?P<line>\d+)(?:[:,]\d+)?\)?:\s*(?:(?:fatal|catastrophic)\s)?error\b:?\s*(?P<said>.*)$",
    re.IGNORECASE,
)
_LINKER = re.compile(
    r"undefined reference|multiple definition|unresolved extern|^ptxas.*(?:error|fatal)", re.IGNORECASE
)


def failure_of_build(result: CompileResult, device_source: str = "") -> Failure:
    """The failure of a candidate that was not built. `device_source`: what the compiler read, if it is known."""
    kinds: dict[str, FailureKind] = {"policy": "policy", "load": "load"}
    return Failure(
        kind=kinds.get(result.stage, "compile"),
        stage=result.stage,
        reason=result.reason or "does not build",
        evidence=build_evidence(result.log, device_source) if result.log != result.reason else "",
        cause=cause_of_build(result),
    )


def failure_of_run(result: RunResult) -> Failure:
    """The failure of a candidate that was built and is not correct."""
    return Failure(
        kind=_kind(result),
        stage=result.stage,
        reason=result.reason,
        evidence=run_evidence(result),
        cause=cause_of_run(result),
        difference=result.difference,
    )


def _kind(result: RunResult) -> FailureKind:
    if result.verdict == "wrong":
        return "wrong"
    if result.verdict == "quarantined":
        return "quarantined"
    stages: dict[str, FailureKind] = {
        "load": "load",
        "policy": "policy",
        "compile": "compile",
        "construct": "construct",
    }
    return stages.get(result.stage, "run")


def build_evidence(log: str, device_source: str = "") -> str:
    """The first errors of a compiler's log, each with the lines of the source round it."""
    source = device_source.splitlines()
    found = list(_errors(log))
    if not found:
        return clipped(log.strip(), LIMIT)
    parts = ["\n".join([line[:LINE], *_excerpt(source, number)]) for line, number in found[:ERRORS]]
    rest = found[ERRORS:]
    if rest:
        parts.append(f"and {len(rest)} more errors, the next: {rest[0][0][:LINE]}")
    return clipped("\n\n".join(parts), LIMIT)


def _errors(log: str) -> Iterator[tuple[str, int]]:
    """(message, line in the device source or 0), each message once."""
    seen: set[str] = set()
    for line in log.splitlines():
        match = _ERROR.match(line)
        if match is None and not _LINKER.search(line):
            continue
        said = match["said"] if match else line.strip()
        if said in seen:
            continue
        seen.add(said)
        # A place in another file (a header) has no line of ours.
        ours = match is not None and match["file"].rpartition("/")[2].startswith("kernel.")
        yield line.strip(), int(match["line"]) if match is not None and ours else 0


def _excerpt(source: Sequence[str], number: int) -> list[str]:
    if not 0 < number <= len(source):
        return []
    low, high = max(1, number - AROUND), min(len(source), number + AROUND)
    return [
        f"{'>' if line == number else ' '}{line:>5} | {source[line - 1].rstrip()[:LINE]}"
        for line in range(low, high + 1)
    ]


def run_evidence(result: RunResult) -> str:
    """Where and how outputs differ, and what each failed check says; the same words once."""
    parts = [result.difference.words()] if result.difference is not None else []
    said = {result.reason}
    checks = [check for check in result.checks if not check.passed and check.name != "difference"]
    for check in checks:
        if check.detail in said or any(check.detail and check.detail in earlier for earlier in said):
            continue
        said.add(check.detail)
        if len(parts) < CHECKS:
            parts.append(f"{check.name}: {clipped(check.detail, DETAIL)}")
    passed = _passed(result)
    return clipped("\n".join([*parts, *([passed] if passed else [])]), LIMIT)


def _passed(result: RunResult) -> str:
    """What is right already: a mended kernel must not lose it."""
    right = [name for name, verdict in result.protocols.items() if verdict == "correct"]
    return f"right under the looser protocols: {', '.join(right)}" if right and result.verdict == "wrong" else ""


def clipped(text: str, limit: int) -> str:
    """The text, its middle left out where it is longer: what happened stands at the start, the error at the end."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 2], text[-(limit - limit // 2 - 40) :]
    return f"{head}\n[{len(text) - len(head) - len(tail)} characters left out]\n{tail}"
