"""What the chat models of a run or a step took, by role: tokens, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from htam_agent.coding.chat import ROLES, Role
from htam_agent.words import Record


class ModelUse(Record):
    """One role's use of its model."""

    role: Role
    calls: int = Field(1, ge=0)
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    usd: float | None = Field(None, ge=0)
    """Null when the model's price is not known."""
    estimated: bool = False
    """Some of the tokens were not counted by the endpoint: a quarter of the characters stands for them."""

    @property
    def tokens(self) -> int:
        """In and out."""
        return self.prompt_tokens + self.completion_tokens


def by_role(uses: Iterable[ModelUse]) -> list[ModelUse]:
    """The sums for each role that was asked, in the order of the roles."""
    found: dict[Role, ModelUse] = {}
    for use in uses:
        found[use.role] = use if use.role not in found else _sum(found[use.role], use)
    return [found[role] for role in ROLES if role in found]


def total_usd(uses: Iterable[ModelUse]) -> float | None:
    """US dollars of all; None when one price is not known, 0 when nothing was asked."""
    total = 0.0
    for use in uses:
        if use.usd is None:
            return None
        total += use.usd
    return total


def _sum(one: ModelUse, other: ModelUse) -> ModelUse:
    return ModelUse(
        role=one.role,
        calls=one.calls + other.calls,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
        usd=None if one.usd is None or other.usd is None else one.usd + other.usd,
        estimated=one.estimated or other.estimated,
    )
