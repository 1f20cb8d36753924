"""Text that a hostile process wrote, made fit for a terminal, a log and a report."""

from __future__ import annotations

import re

MOST_CHARACTERS = 2000
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?")
"""Control sequences, strings (titles, links) and short sequences of a terminal. Source: ECMA-48, 5.3 to 5.6."""
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"  # directions reorder a line
)


def plain(text: str, limit: int = MOST_CHARACTERS) -> str:
    """Without terminal sequences and control characters but tabs and ends of lines, at most `limit` characters."""
    cleaned = _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n")))
    return cleaned if len(cleaned) <= limit else cleaned[: max(0, limit - 6)] + " [...]"


def plain_whole(text: str) -> str:
    """The same without a limit: for text whose writer was limited already."""
    return plain(text, len(text))


def plain_line(text: str, limit: int = MOST_CHARACTERS) -> str:
    """One line: a name of a kernel, say, which stands among others."""
    return plain(" ".join(plain_whole(text).split()), limit)


def plain_end(text: str, limit: int = MOST_CHARACTERS) -> str:
    """The same, of which the end is kept: what failed stands last in a traceback."""
    cleaned = plain(text, len(text))
    return cleaned if len(cleaned) <= limit else "[...] " + cleaned[len(cleaned) - max(0, limit - 6) :]
