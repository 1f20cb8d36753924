"""Before any work: whether the models of a run can be asked at all, and if not, which setting is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from htam_agent.coding.chat import Answer
from htam_agent.coding.endpoint import Endpoint, RetryRules
from htam_agent.coding.providers import check_choice
from htam_agent.coding.roles import ModelChoice
from htam_agent.errors import ModelError, SettingsError

SECONDS = 30.0
"""The most that one model's preflight takes, with its second attempt."""

QUESTION = (("human", "Answer with the one word: ready"),)

WRONG_SETTING = frozenset({"model-key", "model-missing", "model-answer", "model-unreachable", "model-refused"})
"""Failures that another setting mends; the rest (a rate limit, a server in trouble) pass by themselves."""


def check_choices(choices: Iterable[ModelChoice]) -> list[ModelChoice]:
    """The choices that differ in what they reach, one of each, after a look without a network.

    Raises SettingsError for a model, key or address that cannot be right.
    """
    distinct: dict[tuple[str, str | None, str], ModelChoice] = {}
    for choice in choices:
        check_choice(choice)
        distinct.setdefault(choice.endpoint, choice)
    return list(distinct.values())


def ask_each(choices: Sequence[ModelChoice], seconds: float = SECONDS) -> list[tuple[ModelChoice, Answer]]:
    """Ask each model one short question; the answers say what that cost.

    Raises SettingsError that names the setting when one cannot be asked, ModelError when its endpoint is in trouble.
    """
    return [(choice, _ask(choice, seconds)) for choice in check_choices(choices)]


def _ask(choice: ModelChoice, seconds: float) -> Answer:
    rules = RetryRules(attempts=2, base_seconds=0.5, max_seconds=2.0, retry_after_seconds=5.0, total_seconds=seconds)
    quick = choice.model_copy(update={"timeout_seconds": min(choice.timeout_seconds, seconds)})
    try:
        return Endpoint(quick, rules).ask(QUESTION)
    except ModelError as error:
        if error.code in WRONG_SETTING:
            raise SettingsError(error.message, error.remedy, error.code) from error
        remedy = f"{error.remedy} To begin without this check: --no-preflight (HTAM_PREFLIGHT=false)."
        raise ModelError(error.message, remedy, error.code) from error
