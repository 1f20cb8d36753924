"""The edges that depend on the state. Return types are literal, so that a drawing shows every edge."""

from __future__ import annotations

from typing import Literal

from htam_agent.graph.state import State


def _any(state: State, status: str) -> bool:
    return any(candidate.status == status for candidate in state["candidates"].values())


def after_prepare(state: State) -> Literal["select_direction", "finish"]:
    """An original at the floor is kept."""
    return "finish" if state["stop"] else "select_direction"


def after_select(state: State) -> Literal["retrieve_strategies", "finish"]:
    """No direction left to try ends the run."""
    return "finish" if state["stop"] else "retrieve_strategies"


def after_generate(state: State) -> Literal["compile", "run", "profile", "learn"]:
    """New code is built; where the coder refused, the other candidates go on."""
    return "compile" if _any(state, "written") else after_repair_exhausted(state)


def after_compile(state: State) -> Literal["run", "repair"]:
    """A candidate that does not build is mended before anything runs."""
    return "repair" if _any(state, "broken") else "run"


def after_run(state: State) -> Literal["profile", "repair"]:
    """A wrong or failed candidate is mended before the correct ones are profiled."""
    return "repair" if _any(state, "broken") else "profile"


def after_repair(state: State) -> Literal["generate", "run", "profile", "learn"]:
    """Another attempt, or, with no attempts left, on with the other candidates."""
    return "generate" if _any(state, "planned") else after_repair_exhausted(state)


def after_repair_exhausted(state: State) -> Literal["run", "profile", "learn"]:
    """What is left of the step when nothing is to be written."""
    if _any(state, "built"):
        return "run"
    return "profile" if _any(state, "correct") else "learn"


def after_learn(state: State) -> Literal["select_direction", "finish"]:
    """The stop rules."""
    return "finish" if state["stop"] else "select_direction"
