"""Calls of what a user swapped in: awaited where they are coroutines, and checked for the type that was promised."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from htam_agent.background import run_in_background
from htam_agent.errors import HtamError, InfrastructureError
from htam_agent.plain_text import plain
from htam_agent.verdict import ProfileResult

T = TypeVar("T")


def answer_of(function: Callable[..., object], kind: type[T], what: str, *arguments: object) -> T:
    """`function(*arguments)`, which must be a `kind`; `what` names the implementation in a sentence.

    Raises InfrastructureError when it raises or answers something else: results that were found before stay.
    """
    try:
        answer = function(*arguments)
        if inspect.isawaitable(answer):
            answer = run_in_background(answer)
    except HtamError:
        raise
    except Exception as error:
        raise InfrastructureError(
            f"{what} failed: {type(error).__name__}: {error}",
            "Mend or replace it, then resume the run; earlier results are kept.",
            "tool-failed",
        ) from error
    if not isinstance(answer, kind):
        raise InfrastructureError(
            f"{what} answered {type(answer).__name__} instead of {kind.__name__}.",
            "Mend or replace it, then resume the run; earlier results are kept.",
            "tool-answer",
        )
    return answer


def cleaned(profile: ProfileResult) -> ProfileResult:
    """Without control characters and of a length that a prompt can carry: a model reads the diagnosis."""
    return profile.model_copy(update={"diagnosis": plain(profile.diagnosis)})
