"""Calls of what a user swapped in: awaited where they are coroutines, and checked for the type that was promised."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from htam_agent.background import run_in_background
from htam_agent.errors import HtamError, InfrastructureError

if TYPE_CHECKING:
    from htam_agent.runs.records import RunOptions
    from htam_agent.swapping.protocols import Evaluator, EvaluatorFactory
    from htam_agent.task import Task

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


def made_evaluator(factory: EvaluatorFactory, task: Task, options: RunOptions, folder: Path) -> Evaluator:
    """The evaluator of one task. Raises InfrastructureError when it cannot be made or lacks a method."""
    from htam_agent.swapping.fitting import method_misfits
    from htam_agent.swapping.protocols import Evaluator

    made = answer_of(factory, object, "The evaluator of tools.evaluator", task, options, folder)
    problems = method_misfits(made, Evaluator, type(made).__name__)
    if problems:
        raise InfrastructureError(
            f"The evaluator of tools.evaluator does not fit: {'; '.join(problems)}.",
            "It must fit htam_agent.swapping.protocols.Evaluator (docs/swapping.md).",
            "tool-misfit",
        )
    return cast("Evaluator", made)
