"""Diffs as chat models write them, applied to the file that they were shown."""

from __future__ import annotations

import re

DIFF_LANGUAGES = ("diff", "patch", "udiff")
_HUNK = re.compile(r"^@@[^\n]*$", re.MULTILINE)
_HEADER = re.compile(r"^(?:diff --git|index |--- |\+\+\+ |new file|old mode|new mode|\\ No newline).*$")
_SEARCH = re.compile(r"^<{5,} ?SEARCH\n(?P<old>.*?)^={5,}\n(?P<new>.*?)^>{5,} ?REPLACE", re.DOTALL | re.MULTILINE)


class Misfit(Exception):
    """A diff that does not fit the file, in words for the model."""


def looks_like_diff(language: str, text: str) -> bool:
    """Whether a fenced block is a diff: by its language, a hunk's header, or search-and-replace marks."""
    return language in DIFF_LANGUAGES or bool(_HUNK.search(text) or _SEARCH.search(text))


def apply_diff(source: str, diff: str) -> str:
    """The source with every hunk of a unified diff, or every search-and-replace block, applied.

    Line numbers are not looked at: models count badly. The old lines of a hunk must stand in the source exactly once,
    up to white space at the ends of lines. Raises Misfit when a hunk does not fit, or when there is none.
    """
    replaced = [(match["old"].splitlines(), match["new"].splitlines()) for match in _SEARCH.finditer(diff)]
    hunks = replaced or [hunk for part in _HUNK.split(diff) if (hunk := _hunk(part)) is not None]
    if not hunks:
        raise Misfit("The diff changes nothing: send the complete file")
    lines = source.splitlines()
    for number, (old, new) in enumerate(hunks, start=1):
        lines = _replaced(lines, old, new, number)
    return "\n".join(lines) + "\n"


def _hunk(text: str) -> tuple[list[str], list[str]] | None:
    """Old and new lines of one hunk; None where it changes nothing."""
    lines = [line for line in text.splitlines() if not _HEADER.match(line)]
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    if not any(line.startswith(("+", "-")) for line in lines):
        return None
    # A line that should begin with the blank of a context line and lacks it is one all the same.
    old = [line[1:] if line[:1] in ("-", " ") else line for line in lines if not line.startswith("+")]
    new = [line[1:] if line[:1] in ("+", " ") else line for line in lines if not line.startswith("-")]
    return old, new


def _replaced(lines: list[str], old: list[str], new: list[str], number: int) -> list[str]:
    wanted = [line.rstrip() for line in old]
    if not wanted:
        raise Misfit(f"Hunk {number} of the diff has no line that stands in the file: send the complete file")
    plain = [line.rstrip() for line in lines]
    places = [start for start in range(len(lines) - len(wanted) + 1) if plain[start : start + len(wanted)] == wanted]
    if len(places) != 1:
        where = "does not fit the file" if not places else f"fits the file at {len(places)} places"
        raise Misfit(f"Hunk {number} of the diff {where}: send the complete file")
    return [*lines[: places[0]], *new, *lines[places[0] + len(wanted) :]]
