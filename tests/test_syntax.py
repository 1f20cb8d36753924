"""Parsing from several threads at once: candidates are read side by side."""

from __future__ import annotations

import ast
import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from htam_agent.syntax import parse

SOURCE = "\n".join(f"value_{number} = [[{number}, ({number} + 1) * 2], {{'a': f(x, y=[z])}}]" for number in range(60))


def give_way(phase: str, information: dict[str, int]) -> None:
    """What a finaliser does that waits for something: another thread goes on."""
    time.sleep(0)


@pytest.fixture
def busy_collector() -> Iterator[None]:
    """Garbage is collected all the time, in the middle of trees too, and threads change there."""
    before = gc.get_threshold()
    gc.callbacks.append(give_way)
    gc.set_threshold(20)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(give_way)


@pytest.mark.usefixtures("busy_collector")
def test_threads_that_parse_at_once_all_get_their_tree() -> None:
    with ThreadPoolExecutor(4) as pool:
        trees = list(pool.map(parse, [SOURCE] * 24))
    assert {ast.dump(tree) for tree in trees} == {ast.dump(ast.parse(SOURCE))}


@pytest.mark.parametrize(("source", "kind"), [("def", SyntaxError), ("a = 1\0", (SyntaxError, ValueError))])
def test_what_does_not_parse_raises_as_always(source: str, kind: type[Exception]) -> None:
    for _ in range(2):
        with pytest.raises(kind):
            parse(source)
