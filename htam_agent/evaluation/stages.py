"""Where the time of an evaluation goes: seconds by what was waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import BaseModel


class StageClock:
    """Seconds by stage. A stage inside another counts for itself alone, so that the stages never add up to more than
    passed."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time inside to `name`, whether or not it ends by an exception."""
        began = time.monotonic()
        self._inner.append(0.0)
        try:
            yield
        finally:
            passed = time.monotonic() - began
            own = passed - self._inner.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + own
            if self._inner:
                self._inner[-1] += passed

    def take(self) -> dict[str, float]:
        """What was counted since the last call; counting starts again from nothing."""
        taken, self.seconds = self.seconds, {}
        return taken


def kind_of(message: BaseModel) -> str:
    """What a message asks for: the name of the first field of it that is set ("trial", "prepare", ...)."""
    return next((name for name in type(message).model_fields if getattr(message, name)), "other")
