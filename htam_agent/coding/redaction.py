"""Keys struck out of what a model and its endpoint say, before it is shown, stored or cut."""

from __future__ import annotations

from collections.abc import Iterable

LEAST = 16
"""Characters of a key that is looked for. Shorter ones are the placeholders of servers without keys ("EMPTY", "x",
"any"): they are no secrets, and code and prose are full of them."""


def redacted(text: str, secrets: Iterable[str]) -> str:
    """The text with every key in it replaced by ***, the longest first."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= LEAST:
            text = text.replace(secret, "***")
    return text
