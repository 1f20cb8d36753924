"""Diffs as chat models write them, applied to the file that they were shown."""

from __future__ import annotations

import re

DIFF_LANGUAGES = ("diff", "patch", "udiff")
_HUNK = re.compile(r"^@@[^\n]*$", re.MULTILINE)
_HEADER = re.compile(r"^(?:diff --git|index |--- |\+\+\+ |new file|old mode|new mode|\\ No newline).*$")
_SEARCH = re.compile(r"<{5,} ?SEARCH\s*")
_DIVIDER = re.compile(r"={5,}\s*")
_REPLACE = re.compile(r">{5,} ?REPLACE")
MOST_HUNKS = 200
"""Of one diff: each is looked for in the whole file."""

Hunk = tuple[list[str], list[str]]
"""Old and new lines."""


class Misfit(Exception):
    """A diff that does not fit the file, in words for the model."""


def looks_like_diff(language: str, text: str) -> bool:
    """Whether a fenced block is a diff: by its language, a hunk's header, or search-and-replace marks."""
    return language in DIFF_LANGUAGES or bool(_HUNK.search(text) or _search_and_replace(text))


def apply_diff(source: str, diff: str) -> str:
    """The source with every hunk of a unified diff, or every search-and-replace block, applied.

    Line numbers are not looked at: models count badly. The old lines of a hunk must stand in the source exactly once,
    up to white space at the ends of lines. Raises Misfit when a hunk does not fit, or when there is none.
    """
    hunks = _search_and_replace(diff) or [hunk for part in _HUNK.split(diff) if (hunk := _hunk(part)) is not None]
    if not hunks:
        raise Misfit("The diff changes nothing: send the complete file")
    if len(hunks) > MOST_HUNKS:
        raise Misfit(f"The diff has {len(hunks)} hunks, more than {MOST_HUNKS}: send the complete file")
    lines = source.splitlines()
    for number, (old, new) in enumerate(hunks, start=1):
        lines = _replaced(lines, old, new, number)
    return "\n".join(lines) + "\n"


def _search_and_replace(text: str) -> list[Hunk]:
    """The search-and-replace blocks that are complete, in one pass over the lines."""
    found: list[Hunk] = []
    old: list[str] = []
    new: list[str] = []
    part = ""
    for line in text.splitlines():
        if not part and _SEARCH.fullmatch(line):
            old, new, part = [], [], "old"
        elif part == "old" and _DIVIDER.fullmatch(line):
            part = "new"
        elif part == "new" and _REPLACE.match(line):
            found.append((old, new))
            part = ""
        elif part:
            (old if part == "old" else new).append(line)
    return found


def _hunk(text: str) -> Hunk | None:
    """Old and new lines of one hunk; None where it changes nothing."""
    lines = [line for line in text.splitlines() if not _HEADER.match(line)]
    filled = [place for place, line in enumerate(lines) if line.strip()]
    lines = lines[filled[0] : filled[-1] + 1] if filled else []
    if not any(line.startswith(("+", "-")) for line in lines):
        return None
    # A line that should begin with the blank of a context line and lacks it is one all the same.
    old = [line[1:] if line[:1] in ("-", " ") else line for line in lines if not line.startswith("+")]
    new = [line[1:] if line[:1] in ("+", " ") else line for line in lines if not line.startswith("-")]
    return old, new


def _replaced(lines: list[str], old: list[str], new: list[str], number: int) -> list[str]:
    if not old:
        raise Misfit(f"Hunk {number} of the diff has no line that stands in the file: send the complete file")
    # As one text: a search in that is linear, however often the lines repeat themselves.
    text, sought = (f"\n{chr(10).join(line.rstrip() for line in one)}\n" for one in (lines, old))
    place = text.find(sought)
    if place < 0 or text.find(sought, place + 1) >= 0:
        where = "does not fit the file" if place < 0 else "fits the file at several places"
        raise Misfit(f"Hunk {number} of the diff {where}: send the complete file")
    start = text.count("\n", 0, place)
    return [*lines[:start], *new, *lines[start + len(old) :]]
