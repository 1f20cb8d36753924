"""Opens a run's chat: recording or replay, the prices that its budget needs, and the preflight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from htam_agent.coding.chat import Answer, Role
from htam_agent.coding.prices import PriceTable
from htam_agent.coding.role_chat import RoleChat
from htam_agent.coding.roles import ModelChoice
from htam_agent.errors import SettingsError
from htam_agent.words import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from htam_agent.runs.records import RunOptions
    from htam_agent.settings import Settings


class Preflight(Record):
    """One model's answer before any work: it counts for the run that follows."""

    choice: ModelChoice
    answer: Answer


def roles_of(options: RunOptions) -> tuple[Role, ...]:
    """The roles that a run under these options asks."""
    roles: tuple[Role, ...] = ("code", "repair") if options.coder == "model" else ()
    return (*roles, "direct") if options.director == "model" else roles


def open_chat(
    options: RunOptions, settings: Settings, prices: PriceTable, resumed: bool = False
) -> tuple[RoleChat | None, list[Preflight]]:
    """The chat of a run, and what its preflight took; no chat where the run needs no model. A replayed run asks nobody,
    so it has no preflight.

    Raises SettingsError that names the wrong setting, ModelError when an endpoint is in trouble.
    """
    from htam_agent.coding.preflight import ask_each, check_choices

    roles = roles_of(options)
    if options.max_cost is not None and options.coder == "custom":
        raise SettingsError(
            "--max-cost (HTAM_MAX_COST) needs a price, and what a coder of your own costs is not known.",
            "Limit its tokens with --max-tokens, or leave the budget out.",
            "price-unknown",
        )
    if not roles:
        return None, []
    chat = RoleChat.from_settings(settings, options.seed, resumed=resumed)
    wanted = [chat.choices[role] for role in roles]
    if options.max_cost is not None:
        check_prices(wanted, prices)
    if settings.replay is not None:
        return chat, []
    if not settings.preflight:
        check_choices(wanted)
        return chat, []
    return chat, [Preflight(choice=choice, answer=answer) for choice, answer in ask_each(wanted)]


def check_prices(choices: Sequence[ModelChoice], prices: PriceTable) -> None:
    """Raises SettingsError for a model whose price is not known: a budget in dollars could not be kept."""
    for choice in choices:
        if choice.bare_model and prices.find(choice) is None:
            raise SettingsError(
                f"--max-cost (HTAM_MAX_COST) needs the price of {choice.bare_model!r} ({choice.variable('model')}) at "
                f"{choice.base_url or choice.provider or 'OpenAI'}, and no price table has it.",
                "Put it into a table of your own (HTAM_PRICES; 0 for a server of your own), or use --max-tokens.",
                "price-unknown",
            )
