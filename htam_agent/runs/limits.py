"""Limits of a run that may be set anew when it is resumed: what its models cost, and its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from htam_agent.runs.records import Result, RunOptions
    from htam_agent.settings import Settings

LIMITS = ("max_cost", "max_tokens", "max_seconds")


def limited_anew(options: RunOptions, settings: Settings) -> RunOptions:
    """The options of a run with the limits that are given now: on the command line, in the environment or in a call.
    What was spent before counts."""
    given = {name: getattr(settings, name) for name in LIMITS if settings.is_given(name)}
    return options.model_copy(update=given)


def may_go_on(finished: Result, before: RunOptions, now: RunOptions) -> bool:
    """Whether a run with a result goes on when it is resumed: one that its endpoint stopped does, one that a limit
    stopped does under another limit."""
    if finished.unfinished == "model":
        return True
    if finished.unfinished == "budget":
        return (before.max_cost, before.max_tokens) != (now.max_cost, now.max_tokens)
    return finished.unfinished == "time" and before.max_seconds != now.max_seconds
