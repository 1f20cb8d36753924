"""Asking a model from a node: on whose behalf, and what becomes of a run that may ask no more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from htam_agent.coding.chat import Answer
from htam_agent.coding.ledger import FOREIGN
from htam_agent.coding.roles import ModelChoice
from htam_agent.coding.scope import Scope, asking_for
from htam_agent.errors import BudgetSpent, ModelError
from htam_agent.graph.context import context_of
from htam_agent.graph.events import emit
from htam_agent.graph.state import Halt

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

    from htam_agent.coding.base import Code
    from htam_agent.graph.context import Context, Session
    from htam_agent.graph.state import Candidate, State


@contextmanager
def asking(state: State, runtime: Runtime[Context], session: Session, place: Place) -> Iterator[Scope]:
    """What a model is asked inside is put down in the run's books, under its limits."""
    options = context_of(runtime).options
    left = None if options.max_seconds is None else options.max_seconds - state["seconds"]
    scope = Scope(
        run=str(session.folder.root),
        ledger=session.ledger,
        step=place.step,
        place=place.name,
        deadline=None if left is None else time.monotonic() + left,
        tell=lambda text: emit(runtime, "waiting", text, step=place.step),
    )
    before = session.ledger.entries
    with asking_for(scope):
        yield scope
    if session.ledger.entries != before:
        emit(runtime, "spent", session.ledger.summary(), step=place.step)


class Place:
    """Where in the run a question is asked."""

    def __init__(self, step: int, name: str) -> None:
        self.step = step
        self.name = name

    @classmethod
    def of_candidate(cls, candidate: Candidate) -> Place:
        """ "0002-0-1": step, candidate, attempt; with the step's opening where it was opened again."""
        again = f"-again{candidate.opening}" if candidate.opening else ""
        return cls(candidate.step, f"{candidate.step:04d}-{candidate.index}-{candidate.attempt}{again}")

    @classmethod
    def of_step(cls, step: int, opening: int) -> Place:
        """ "0002", for what is asked before a step has candidates."""
        return cls(step, f"{step:04d}" + (f"-again{opening}" if opening else ""))


def count_foreign(code: Code, scope: Scope) -> None:
    """Puts down what a coder of the user's own says that it took; one that asked the run's chat in this scope is
    counted there."""
    if code.prompt_tokens + code.completion_tokens == 0 or scope.asked.is_set():
        return
    answer = Answer(
        text="",
        prompt_tokens=code.prompt_tokens,
        completion_tokens=code.completion_tokens,
        estimated=code.tokens_estimated,
        seconds=code.seconds,
    )
    scope.ledger.add(ModelChoice(role="code", model=FOREIGN), scope.step, answer)


def halted_by(error: BudgetSpent | ModelError, state: State) -> Halt:
    """Why the run stops here. An endpoint that died ends a run only where there is a kernel to
    keep: without one the error itself is the outcome, and a resume asks again."""
    if isinstance(error, ModelError) and state.get("best") is None:
        raise error
    kind: Literal["budget", "time", "model"] = "model"
    if isinstance(error, BudgetSpent):
        kind = "time" if error.code == "time-is-up" else "budget"
    return Halt(kind=kind, reason=error.message.rstrip("."))
