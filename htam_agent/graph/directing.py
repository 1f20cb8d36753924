"""Who chooses a step's direction: the score, a chat model among the best scored, or the user who is asked.

A choice is on disk before the state moves on, so that a node that runs again proposes the same and asks no model twice.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

from pydantic import BaseModel, ConfigDict, Field

from htam_agent.graph.pauses import pause
from htam_agent.runs.answers import direction_answer
from htam_agent.runs.records import Directed, Offered
from htam_agent.runs.waiting import Waiting
from htam_agent.words import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from htam_agent.coding.chat import Chat
    from htam_agent.graph.context import Context, Session
    from htam_agent.graph.state import Draft, State
    from htam_agent.memory.model import ScoredDirection
    from htam_agent.memory.modes import MemoryMode
    from htam_agent.runs.folder import RunFolder

SHOWN = 5
"""How many of the best-scored directions a model chooses among."""


UNDIRECTED: tuple[MemoryMode, ...] = ("no-hierarchy", "random", "none")
"""Memory modes in which the order of directions is a draw, or follows from the strategies: a model's choice would
measure the model, not the mode."""


class Choice(Record):
    """A direction that was chosen for a step, and all that could be taken, the chosen one first."""

    offered: list[Offered]
    directed: Directed


class DirectRequest(Record):
    """What a director looks at. `offered` are the directions that can be taken, best first."""

    offered: list[Offered]
    titles: dict[str, str]
    """Direction -> its title and intent."""
    operator: str
    device: str
    best: str
    """The best kernel so far in words; empty while there is none."""
    history: list[str]
    step: int
    steps_left: int


class Director(Protocol):
    """Chooses among scored directions. Raises ModelError when its endpoint fails for good."""

    def choose(self, request: DirectRequest) -> Choice: ...


class DirectionChoice(BaseModel):
    """The structured answer that a model is asked for."""

    model_config = ConfigDict(extra="ignore")

    direction: str = Field(description="The id of the direction to take next, exactly as listed.")
    reason: str = Field("", description="Why, in one or two sentences.")


class ModelDirector:
    """Asks the chat model of the role `direct`. A choice that is not on offer, or none, falls back to the score, and
    the choice says so. `render` makes the prompt direct.md from its values."""

    def __init__(self, chat: Chat, render: Callable[[Mapping[str, object]], str]) -> None:
        self._chat = chat
        self._render = render

    def choose(self, request: DirectRequest) -> Choice:
        shown = request.offered[:SHOWN]
        values = {
            "directions": [{**one.model_dump(), "title": request.titles.get(one.direction, "")} for one in shown],
            **request.model_dump(include={"operator", "device", "best", "history", "step", "steps_left"}),
        }
        answer = self._chat.ask("direct", [("human", self._render(values))], DirectionChoice)
        given = answer.parsed if isinstance(answer.parsed, DirectionChoice) else None
        names = [one.direction for one in shown]
        asked = Directed(
            by="score",
            structure=answer.structure,
            tokens=answer.prompt_tokens + answer.completion_tokens,
            seconds=answer.seconds,
        )
        wanted = given.direction.strip() if given else ""
        if given is None or wanted not in names:
            said = f"chose {wanted[:80]!r}, which is not on offer" if given else "gave no choice that could be read"
            refused = f" ({answer.refused[:200]})" if answer.refused else ""
            note = f"the model {said}{refused}; the score decided"
            return Choice(offered=request.offered, directed=asked.model_copy(update={"note": note}))
        reason = " ".join(given.reason.split())[:400]
        directed = asked.model_copy(update={"by": "model", "reason": reason})
        return Choice(offered=_first(wanted, request.offered), directed=directed)


def choose_direction(
    state: State, context: Context, session: Session, draft: Draft, scored: Sequence[ScoredDirection]
) -> Choice:
    """The choice for this step, by the context's director or by the score; it is on disk when this returns."""
    offered = [Offered.model_validate(dict(one)) for one in scored]
    choice = Choice(offered=offered, directed=Directed(by="score"))
    mode = context.options.memory_mode
    if context.director is not None and mode in UNDIRECTED:
        note = f"no model was asked: in the memory mode {mode} directions are not chosen"
        choice = Choice(offered=offered, directed=Directed(by="score", note=note))
    elif context.director is not None:
        choice = context.director.choose(_request(state, context, session, draft, offered))
    session.folder.write(record_of(draft), choice)
    return choice


def reasons_of(folder: RunFolder, draft: Draft) -> Offered | None:
    """The direction of a step as it was offered, with the terms of its score; None where no choice is on disk."""
    choice = folder.read(record_of(draft), Choice)
    return next((one for one in choice.offered if one.direction == draft.direction), None) if choice else None


def record_of(draft: Draft) -> str:
    """The file in the run's folder that holds what was chosen for this opening of the step."""
    return f"directions/{draft.step:04d}-{draft.opening}.json"


def approved(folder: RunFolder, task: str, draft: Draft, choice: Choice) -> Choice | None:
    """The choice after its user said yes, to it or to another direction; None when every one was declined."""
    left, declined = list(choice.offered), list[str]()
    while left:
        waiting = Waiting(
            kind="direction",
            run=str(folder.root),
            task=task,
            step=draft.step,
            text=f"yes to the direction {left[0].direction} for step {draft.step}, no, or another direction's name",
            directions=left,
        )
        answer = pause(folder, waiting, functools.partial(direction_answer, waiting))
        if answer:
            return _as_answered(choice, answer, declined)
        declined.append(left.pop(0).direction)
    return None


def _as_answered(choice: Choice, answer: str, declined: Sequence[str]) -> Choice:
    notes = [choice.directed.note] if choice.directed.note else []
    if declined:
        notes.append(f"declined: {', '.join(declined)}")
    by = choice.directed.by if answer == choice.offered[0].direction else "user"
    directed = choice.directed.model_copy(update={"by": by, "note": "; ".join(notes)})
    return Choice(offered=_first(answer, choice.offered), directed=directed)


def _first(direction: str, offered: Sequence[Offered]) -> list[Offered]:
    return sorted(offered, key=lambda one: one.direction != direction)


def _request(state: State, context: Context, session: Session, draft: Draft, offered: list[Offered]) -> DirectRequest:
    best = state.get("best")
    words = ""
    if best is not None:
        over = f"{best.speedup.best:.2f}x over the best baseline" if best.speedup.best else ""
        floor = f"{best.fraction_of_floor:.0%} of the floor" if best.fraction_of_floor else ""
        words = ", ".join(part for part in (f"bound by {best.bottleneck}", over, floor) if part)
    known = context.memory.directions
    titles = {
        one.direction: f"{known[one.direction].title}: {known[one.direction].intent}"
        for one in offered
        if one.direction in known
    }
    operator = session.operator
    names = ", ".join(operator.operators) or operator.untraceable or operator.name
    return DirectRequest(
        offered=offered,
        titles=titles,
        operator=f"{operator.operator_class} ({names})",
        device=session.bench.device.name,
        best=words,
        history=[past.line for past in state.get("past", [])],
        step=draft.step,
        steps_left=context.options.steps - draft.step + 1,
    )
