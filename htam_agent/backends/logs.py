"""Compiler logs, made short enough for a prompt without losing the first errors."""

from __future__ import annotations

import re

LOG_CHARACTERS = 20_000
"""What a stored log keeps at most."""

_ERROR = re.compile(r"(^|: |\b)(fatal |catastrophic )?error\b", re.IGNORECASE)


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
