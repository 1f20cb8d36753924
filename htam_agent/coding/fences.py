"""Fenced blocks and thinking in a chat model's answer."""

from __future__ import annotations

import re

from htam_agent.words import Record

# Possessive quantifiers: a hostile line of a megabyte is read once and not once for each of its characters.
_OPENING = re.compile(r"^(?P<indent>[ \t]*+)(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<language>[\w+#.-]*+)[^`\n]*+$")
_TAG = re.compile(r"<(?P<closing>/?)(?P<name>think|thinking|reasoning)>", re.IGNORECASE)
_THINKING_END = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)
_THINKING_START = re.compile(r"<(?:think|thinking|reasoning)>", re.IGNORECASE)
WRAPPERS = ("markdown", "md")
"""Languages of a fence that is put round a whole answer, fences and all."""


class Block(Record):
    """One fenced block; `closed` is false when the answer ended inside it."""

    language: str
    text: str
    closed: bool


def without_thinking(text: str) -> tuple[str, bool]:
    """The answer without thinking tags, and whether it ended while thinking.

    Some servers drop the opening tag, so everything up to a lone closing tag is thinking too.
    """
    parts = _THINKING_END.split(_without_pairs(text))
    rest = parts[-1]
    opened = _THINKING_START.search(rest)
    # A tag inside a fenced block is the candidate's own text.
    if opened and not any(opened[0] in block.text for block in fenced_blocks(rest)):
        return rest[: opened.start()], True
    return rest, False


def _without_pairs(text: str) -> str:
    """The text without what stands between a tag and the next closing one of the same name. Each tag is looked at
    once: an answer that loops in opening tags may have a hundred thousand."""
    tags = list(_TAG.finditer(text))
    last = {tag["name"].lower(): tag.start() for tag in tags if tag["closing"]}
    kept: list[str] = []
    end, waiting_for = 0, ""
    for tag in tags:
        name = tag["name"].lower()
        if waiting_for:
            if tag["closing"] and name == waiting_for:
                end, waiting_for = tag.end(), ""
        elif not tag["closing"] and last.get(name, -1) > tag.start():
            kept.append(text[end : tag.start()])
            waiting_for = name
    return "".join([*kept, text[end:]])


def fenced_blocks(text: str) -> list[Block]:
    """All fenced blocks in order (CommonMark: a fence closes with at least as many of the same character)."""
    blocks: list[Block] = []
    body: list[str] = []
    opening: re.Match[str] | None = None
    for line in text.splitlines():
        if opening is None:
            opening = _OPENING.match(line)
            if opening is not None and opening["language"].lower() in WRAPPERS:
                opening = None  # what stands in it is read as if the fence were not there
            body = []
        elif _closes(line, opening["fence"]):
            blocks.append(_block(opening, body, closed=True))
            opening = None
        else:
            body.append(line)
    if opening is not None:
        blocks.append(_block(opening, body, closed=False))
    return blocks


def _closes(line: str, fence: str) -> bool:
    text = line.strip()
    return len(text) >= len(fence) and set(text) == {fence[0]}


def _block(opening: re.Match[str], body: list[str], *, closed: bool) -> Block:
    indent = len(opening["indent"])
    # A fence inside a list is indented, and its lines with it.
    lines = [line[indent:] if not line[:indent].strip() else line for line in body]
    return Block(language=opening["language"].lower(), text="\n".join(lines), closed=closed)
