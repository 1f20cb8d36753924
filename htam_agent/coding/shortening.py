"""Making a prompt shorter: the least useful values first, never the task or the rules, and every cut is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

Values: TypeAlias = Mapping[str, object]

CHARACTERS_PER_TOKEN = 4
"""Of code and English together, roughly: an estimate to keep a size by, no bill."""
CUT = "[shortened]"


def estimated_tokens(text: str) -> int:
    """Tokens by length, rounded up."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def shorter(values: Values) -> Iterator[Values]:
    """The values again and again, each time with one thing less; ends when only the task and the best kernel are left.

    Values are those of the prompt `code`; what is not there is passed over.
    """
    current: dict[str, object] = dict(values)
    for what, change in STEPS:
        changed = change(current)
        if changed is None:
            continue
        said = current.get("shortened")
        current = {**changed, "shortened": [*(said if isinstance(said, list) else []), what]}
        yield current


def _lines(name: str, count: int, *, last: bool = False) -> Callable[[Values], dict[str, object] | None]:
    """Keeps `count` lines of a text, or items of a list."""

    def change(values: Values) -> dict[str, object] | None:
        value = values.get(name)
        lines = value.splitlines() if isinstance(value, str) else list(value) if isinstance(value, list) else []
        if len(lines) <= count:
            return None
        kept = lines[-count:] if last else lines[:count]
        return {**values, name: "\n".join([*kept, CUT]) if isinstance(value, str) else kept}

    return change


def _blocks(beyond: int, characters: int) -> Callable[[Values], dict[str, object] | None]:
    """Cuts the templates of the strategies from place `beyond` on."""

    def change(values: Values) -> dict[str, object] | None:
        strategies = values.get("strategies")
        if not isinstance(strategies, list):
            return None
        cut = [
            {**one, "block": _cut(str(one.get("block", "")), characters)} if place >= beyond else one
            for place, one in enumerate(strategies)
            if isinstance(one, dict)
        ]
        return None if cut == strategies else {**values, "strategies": cut}

    return change


def _strategies(count: int) -> Callable[[Values], dict[str, object] | None]:
    return _lines("strategies", count)


def _best(characters: int) -> Callable[[Values], dict[str, object] | None]:
    def change(values: Values) -> dict[str, object] | None:
        best = values.get("best")
        if not isinstance(best, dict) or len(str(best["source"])) <= characters:
            return None
        return {**values, "best": {**best, "source": _cut(str(best["source"]), characters)}}

    return change


def _facts(characters: int) -> Callable[[Values], dict[str, object] | None]:
    """Cuts each line on the operator: a module of thousands of parameters has them in one."""

    def change(values: Values) -> dict[str, object] | None:
        operator = values.get("operator")
        facts = str(operator.get("facts", "")) if isinstance(operator, dict) else ""
        lines = [line if len(line) <= characters else f"{line[:characters]} {CUT}" for line in facts.splitlines()]
        if not isinstance(operator, dict) or all(len(line) <= characters for line in facts.splitlines()):
            return None
        return {**values, "operator": {**operator, "facts": "\n".join(lines)}}

    return change


def _cut(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    return f"{text[:characters].rpartition(chr(10))[0]}\n{CUT}" if characters else ""


STEPS: tuple[tuple[str, Callable[[Values], dict[str, object] | None]], ...] = (
    ("templates of the fourth strategy and later", _blocks(3, 0)),
    ("calls beyond the first 60", _lines("graph", 60)),
    ("the end of long lists of tensors", _facts(3000)),
    ("steps before the last four", _lines("history", 4, last=True)),
    ("strategies beyond the third", _strategies(3)),
    ("most of the templates of the second and third strategy", _blocks(1, 600)),
    ("most of the first strategy's template", _blocks(0, 1200)),
    ("calls beyond the first 25", _lines("graph", 25)),
    ("strategies beyond the first", _strategies(1)),
    ("all templates", _blocks(0, 0)),
    ("most of long lists of tensors", _facts(800)),
    ("the end of the best kernel's source", _best(12_000)),
)
"""Least useful first. The task's source, the rules and the contract are in none of them."""
