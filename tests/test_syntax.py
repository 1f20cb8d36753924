"""Parsing from several threads at once: candidates are read side by side."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from htam_agent.syntax import parse

SOURCE = "\n".join(f"value_{number} = [[{number}, ({number} + 1) * 2], {{'a': f(x, y=[z])}}]" for number in range(800))


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient")
def test_threads_that_parse_at_once_all_get_their_tree() -> None:
    with ThreadPoolExecutor(8) as pool:
        trees = list(pool.map(parse, [SOURCE] * 32))
    assert {ast.dump(tree) for tree in trees} == {ast.dump(ast.parse(SOURCE))}


@pytest.mark.parametrize(("source", "kind"), [("def", SyntaxError), ("a = 1\0", (SyntaxError, ValueError))])
def test_what_does_not_parse_raises_as_always(source: str, kind: type[Exception]) -> None:
    for _ in range(2):
        with pytest.raises(kind):
            parse(source)
