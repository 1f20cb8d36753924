"""The edges that depend on the state. Return types are literal, so that a drawing shows every edge."""

from __future__ import annotations

from typing import Literal

from langgraph.types import Send

from htam_agent.graph.state import Candidate, State


def _any(state: State, status: str) -> bool:
    return any(candidate.status == status for candidate in state["candidates"].values())


def after_prepare(state: State) -> Literal["select_direction", "finish"]:
    """An original at the floor is kept."""
    return "finish" if state["stop"] else "select_direction"


def after_select(state: State) -> Literal["retrieve_strategies", "finish"]:
    """No direction left to try ends the run."""
    return "finish" if state["stop"] else "retrieve_strategies"


def write_each(state: State) -> list[Send]:
    """Each planned candidate goes to generate on its own, with what its coder may look at and no more: what is sent
    lies in the checkpoint."""
    planned = [candidate for candidate in state["candidates"].values() if candidate.status == "planned"]
    return [Send("generate", _seen_by(state, candidate)) for candidate in planned]


def _seen_by(state: State, candidate: Candidate) -> State:
    return {
        "task": state["task"],
        "run": state["run"],
        "draft": state["draft"],
        "best": state["best"],
        "past": state["past"],
        "tried": state["tried"],
        "seconds": state["seconds"],
        "candidates": {candidate.key: candidate},
    }


def after_retrieve(state: State) -> list[Send] | Literal["learn"]:
    """The step's candidates are written side by side; without a strategy there is none."""
    return write_each(state) if _any(state, "planned") else "learn"


def after_compile(state: State) -> Literal["run", "profile", "learn", "repair"]:
    """A candidate that does not build is mended before anything runs; where the coder refused or the user declined, the
    others go on."""
    return "repair" if _any(state, "broken") else after_repair_exhausted(state)


def after_run(state: State) -> Literal["profile", "repair"]:
    """A wrong or failed candidate is mended before the correct ones are profiled."""
    return "repair" if _any(state, "broken") else "profile"


def after_repair(state: State) -> list[Send] | Literal["run", "profile", "learn"]:
    """Another attempt, or, with no attempts left, on with the other candidates."""
    return write_each(state) if _any(state, "planned") else after_repair_exhausted(state)


def after_repair_exhausted(state: State) -> Literal["run", "profile", "learn"]:
    """What is left of the step when nothing is to be written."""
    if _any(state, "built"):
        return "run"
    return "profile" if _any(state, "correct") else "learn"


def after_learn(state: State) -> Literal["select_direction", "finish"]:
    """The stop rules."""
    return "finish" if state["stop"] else "select_direction"
