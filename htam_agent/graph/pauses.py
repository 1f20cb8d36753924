"""Pauses: what a run waits for goes out by LangGraph's interrupt, and what comes back is looked at before it is taken.

A node runs again from its top when it is resumed, so nothing but what may be done twice comes before a pause. An answer
that does not fit is asked for again with the reason: the run is as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from langgraph.types import interrupt

from htam_agent.errors import RunError
from htam_agent.runs.waiting import WAITING_FILE, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from htam_agent.runs.folder import RunFolder

T = TypeVar("T")


def pause(folder: RunFolder, waiting: Waiting, accept: Callable[[object], T]) -> T:
    """What `accept` makes of the answer. `accept` raises RunError for an answer that does not fit; each answer that was
    ever given to this node is shown to it again after a resume, so what it does must be the same each time."""
    told = waiting
    while True:
        folder.write(WAITING_FILE, told)
        given: object = interrupt(told.model_dump(mode="json", by_alias=True))
        try:
            answer = accept(given)
        except RunError as error:
            told = waiting.model_copy(update={"problem": str(error)})
            continue
        folder.path(WAITING_FILE).unlink(missing_ok=True)
        return answer
