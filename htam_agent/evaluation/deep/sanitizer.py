"""NVIDIA's compute-sanitizer: how it is called, and what its text says. Source: Compute Sanitizer's user manual,
sections Memcheck, Racecheck, Initcheck and Synccheck Tool.

A report begins with its kind, names the kernel in one of the next lines and ends with an empty one; the last line of
all is a summary. A text without the summary is no clean one: the tool did not finish.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from htam_agent.words import Record

Tool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]
TOOLS: tuple[Tool, ...] = ("memcheck", "racecheck", "initcheck", "synccheck")
PREFIX = "========="
SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: (\d+)")
BEGINNINGS = re.compile(
    r"^(Invalid |Misaligned |Uninitialized |Barrier error|(Error: |Warning: )?(Race reported|Potential .* hazard)"
    r"|Malloc/Free)"
)
PROGRAM_ERRORS = re.compile(r"^Program hit ")
LIBRARY = re.compile(r"\b(at::|c10::|cublas|cudnn|nvjet|nvinfer|xmma|sm\d+_xmma)")
"""Kernels of torch and of NVIDIA's libraries."""
WARNING = "Warning:"
REPORTS_LIMIT = 20


class SanitizerReport(Record):
    """One finding. `text`: its first lines in one; `own`: the kernel that it names is one of the candidate's."""

    text: str
    own: bool
    warning: bool = False


class SanitizerAnswer(Record):
    """What one tool found. `finished`: its summary is there."""

    finished: bool
    reports: list[SanitizerReport]

    def of_own(self) -> list[str]:
        """The errors in the candidate's own kernels, each once, without racecheck's warnings: it does not call those
        errors."""
        return list(dict.fromkeys(report.text for report in self.reports if report.own and not report.warning))


def command(program: str, tool: Tool, log: str) -> list[str]:
    """The tool in front of a program's own command. API errors are not reported: torch asks for some on purpose."""
    options = [program, "--tool", tool, "--log-file", log, "--print-limit", "200", "--show-backtrace", "no"]
    if tool == "memcheck":
        options += ["--report-api-errors", "no"]
    return options


def parse(text: str, kernels: Sequence[str]) -> SanitizerAnswer:
    """The reports of a tool's text. `kernels`: names of the candidate's kernels; empty: all but torch's and NVIDIA's
    count as its own."""
    lines = [line.removeprefix(PREFIX).strip() for line in text.splitlines() if line.startswith(PREFIX)]
    blocks: list[list[str]] = []
    for line in lines:
        if BEGINNINGS.match(line):
            blocks.append([line])
        elif not line or SUMMARY.search(line) or PROGRAM_ERRORS.match(line):
            blocks.append([])
        elif blocks and blocks[-1]:
            blocks[-1].append(line)
    reports = [_report(block, kernels) for block in blocks if block]
    finished = any(SUMMARY.search(line) for line in lines)
    return SanitizerAnswer(finished=finished, reports=reports)


def _report(block: Sequence[str], kernels: Sequence[str]) -> SanitizerReport:
    text = _place_of_nothing(" ".join(line for line in block[:4] if not line.startswith(("Saved host", "Host Frame"))))
    if kernels:
        own = any(_names(name, line) for name in kernels for line in block)
    else:
        own = not any(LIBRARY.search(line) for line in block)
    return SanitizerReport(text=text[:400], own=own, warning=block[0].startswith(WARNING))


def _names(kernel: str, line: str) -> bool:
    """Whether a line names this kernel as a whole word."""
    return re.search(rf"(?<![\w$]){re.escape(kernel)}(?![\w$])", line) is not None


def _place_of_nothing(text: str) -> str:
    """Without the addresses of the device's memory, which differ in each run."""
    return re.sub(r"0x[0-9a-f]{8,}", "an address", text)
