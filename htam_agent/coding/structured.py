"""An answer as an object: by the endpoint's structured output, or as JSON in plain text where it has none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from htam_agent.coding.chat import Message

LOOKED_AT = 100_000
"""Characters at the end of an answer in which an object is looked for."""


def response_format(schema: type[BaseModel]) -> dict[str, object]:
    """OpenAI's `response_format` for this schema."""
    described = {"name": schema.__name__, "schema": schema.model_json_schema(), "strict": False}
    return {"type": "json_schema", "json_schema": described}


def with_instruction(messages: list[Message], schema: type[BaseModel]) -> list[Message]:
    """The messages with the schema in words at their end, for endpoints without structured output."""
    wanted = json.dumps(schema.model_json_schema(), ensure_ascii=False)
    asked = f"Answer with one JSON object that fits this schema, and nothing else:\n{wanted}"
    speaker, text = messages[-1]
    if speaker == "human":
        return [*messages[:-1], (speaker, f"{text.rstrip()}\n\n{asked}")]
    return [*messages, ("human", asked)]


def parse_object(text: str, schema: type[BaseModel]) -> BaseModel | None:
    """The last JSON object in the text that fits the schema; None where there is none."""
    fitting = None
    for candidate in _objects(text[-LOOKED_AT:]):
        try:
            fitting = schema.model_validate(candidate)
        except ValidationError:
            continue
    return fitting


def _objects(text: str) -> Iterator[dict[str, object]]:
    """Every JSON object in the text that is not part of another, in order."""
    decoder = json.JSONDecoder()
    position = text.find("{")
    while position >= 0:
        try:
            found, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            if isinstance(found, dict):
                yield found
        position = text.find("{", end)
