"""On whose behalf a question is asked: the run's books, the place in the run, and the time that is left.

A coder and a chat serve many runs at once and keep nothing of any. The node that asks opens a scope; a chat that is
asked within it finds it. Outside of one nothing is counted.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from htam_agent.coding.ledger import Ledger


@dataclass(frozen=True)
class Scope:
    """`place` tells the question's place in the run ("0002-0-1": step, candidate, attempt), `deadline` the reading of
    time.monotonic at which the run's time is up."""

    run: str
    ledger: Ledger
    step: int
    place: str
    deadline: float | None = None
    tell: Callable[[str], None] | None = None
    """Is told of attempts that failed, while the next is waited for."""
    asked: threading.Event = field(default_factory=threading.Event, compare=False)
    """Set once a chat put something down in the books on behalf of this scope."""


_current: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("htam_asking_scope", default=None)


@contextmanager
def asking_for(scope: Scope) -> Iterator[Scope]:
    """Questions that are asked inside, in this thread, are the scope's."""
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


def current_scope() -> Scope | None:
    """The scope that this thread asks in; None outside of one."""
    return _current.get()
