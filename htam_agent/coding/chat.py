"""The Chat seam: one question to a chat model in one of its roles, and what came back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, get_args, runtime_checkable

from pydantic import BaseModel, Field

from htam_agent.words import Record

Role = Literal["direct", "code", "repair", "reflect"]
"""What a model is asked for: to choose a direction, to write a kernel, to mend one, to say what was learned."""
ROLES: tuple[Role, ...] = get_args(Role)

Message = tuple[str, str]
"""(speaker, text); the speaker is `system`, `human` or `ai`."""

Structure = Literal["none", "json-schema", "plain-json", "failed"]
"""How a parsed answer was got: no schema was asked for; the endpoint's own structured output; JSON in plain text, since
the endpoint does not have that; or not at all."""


class Answer(Record):
    """What the model said. Tokens are the server's count, or an estimate of a quarter of the characters, marked."""

    text: str
    parsed: BaseModel | None = None
    """The answer as the schema that was asked for; None without one, and where `structure` is `failed`."""
    structure: Structure = "none"
    cut_off: bool = False
    """The answer reached its length limit."""
    refused: str = ""
    """Why the model or its filter would not answer; empty where it did."""
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    estimated: bool = False
    seconds: float = 0.0


@runtime_checkable
class Chat(Protocol):
    """A chat model for each role. Each question is a conversation of its own; nothing is kept between them."""

    def ask(self, role: Role, messages: Sequence[Message], schema: type[BaseModel] | None = None) -> Answer:
        """Send the messages to the model of this role. With `schema` the answer is asked for as such an object.

        Raises ModelError when the endpoint fails for good, BudgetSpent when the question could cost more than the run
        may still spend.
        """
        ...
