"""Compiler logs, made short enough for a prompt without losing the first errors."""

from __future__ import annotations

import re

LOG_CHARACTERS = 20_000
"""What a stored log keeps at most."""

_ERROR = re.compile(r"(^|: |\b)(fatal |catastrophic )?error\b", re.IGNORECASE)


_DIAGNOSTIC = re.compile(
    r"""^\S[^:\n]*:\d+:(\d+:)?\s(fatal\s|sorry,\s)?error\b        # g++ and its assembler: kernel.cpp:3:7: error: ...
      | ^\S[^(\n]*\(\d+\):\s(catastrophic\s|fatal\s)?error\b      # NVRTC: kernel.cu(3): error: ...
      | ^(ptxas\s)?(.*,\sline\s\d+;\s)?(error|fatal)\s*:   # ptxas: too many resources, wrong inline PTX
      | \b(undefined\sreference\sto|multiple\sdefinition\sof|relocation\s.*\sagainst)\b
      | ^\S+ld:\scannot\sfind\s
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_MACHINE = re.compile(
    r"^[^#]*\b(fatal error|can't \w+|cannot \w+|final link failed|unable to \w+)\b[^#\n]*"
    r"(No space left on device|Disk quota exceeded|Input/output error|Read-only file system|Too many open files"
    r"|Resource temporarily unavailable)[.'\"]?\s*$",
    re.IGNORECASE,
)


def blames_source(log: str) -> bool:
    """Whether a failed compiler's log has a diagnostic of the source: a place in it, or a symbol of it that does not
    link. A full disk, even when it is reported at a place in the source, is none."""
    return any(_DIAGNOSTIC.search(line) and not _MACHINE.search(line) for line in log.replace("\0", "").splitlines())


def shorten(log: str, limit: int = LOG_CHARACTERS) -> str:
    """The log with everything from its first error on in front, cut to `limit` characters.

    Later errors are mostly consequences of the first one, and warnings may come before it by the thousand.
    """
    text = log.strip()
    if len(text) <= limit:
        return text
    lines = text.splitlines()
    first = next((index for index, line in enumerate(lines) if _ERROR.search(line)), 0)
    body = "\n".join(lines[first:])
    skipped = f"[{first} lines before the first error left out]\n" if first else ""
    room = limit - len(skipped) - 40
    if len(body) > room:
        body = body[:room] + f"\n[{len(body) - room} characters left out]"
    return skipped + body


def first_error(log: str) -> str:
    """The first line that names an error, or the first line at all."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.search(line)), lines[0] if lines else "")
