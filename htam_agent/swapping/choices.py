"""What the settings `tools` and `mcp` hold. Nothing is looked up here (finding.py does)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator

from htam_agent.words import Record

SeamName = Literal["compile", "run", "profile", "coder", "evaluator", "embedder", "executor"]
MCP_PREFIX = "mcp:"
SHORTEST_KEY = 8
"""Characters of a value from which on it is struck out of messages."""
_KEY_NAME = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)


class ToolChoices(Record):
    """Who serves each seam: a built-in name, an entry point's name, `pkg.mod:attr`, or `mcp:server/tool`, for which
    htam.toml may also say `{mcp = "server/tool"}`. None: what is built in."""

    compile: str | None = None
    run: str | None = None
    profile: str | None = None
    coder: str | None = None
    evaluator: str | None = None
    embedder: str | None = None
    executor: str | None = None

    @field_validator("*", mode="before")
    @classmethod
    def _one_form(cls, value: object) -> object:
        if isinstance(value, Mapping):
            if set(value) != {"mcp"} or not isinstance(value["mcp"], str):
                raise ValueError('is neither text nor a table of the form {mcp = "server/tool"}')
            value = MCP_PREFIX + value["mcp"]
        if isinstance(value, str) and not value.strip():
            raise ValueError("is empty")
        return value

    def given(self) -> dict[SeamName, str]:
        """The seams for which something was chosen."""
        return {name: value for name in SEAM_NAMES if (value := getattr(self, name)) is not None}

    def __str__(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.given().items()) or "(built in)"


SEAM_NAMES: tuple[SeamName, ...] = ("compile", "run", "profile", "coder", "evaluator", "embedder", "executor")


class McpServer(Record):
    """One MCP server, in the form of desktop clients: a command that speaks over stdin and stdout, or an address."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, SecretStr] = Field(default_factory=dict)
    """Added to a small environment (HOME, PATH and the like): a server sees none of the user's other variables."""
    cwd: Path | None = None
    url: str | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    type: Literal["stdio", "http", "streamable-http"] | None = None
    """Written by some clients; it follows from the other keys."""
    start_seconds: float = Field(30.0, gt=0)
    """Time limit of starting it and listing its tools."""
    call_seconds: float = Field(600.0, gt=0)
    """Time limit of one call."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either a command or a url")
        return self

    def __str__(self) -> str:
        """The command or the address alone: the rest, a user of the address included, may hold keys."""
        if self.url is None:
            return self.command or ""
        _, place, _ = _parted(self.url)
        return place

    def hide(self, text: str) -> str:
        """The text without the values that may be keys: a server's words and a client's errors repeat them."""
        user, _, query = _parted(self.url or "")
        values = [value.get_secret_value() for value in (*self.env.values(), *self.headers.values())]
        values += [user, *user.split(":"), *(pair.partition("=")[2] for pair in query.split("&")), *self._keys()]
        found = {part for value in values for part in (value, *value.split())}
        # Short ones ("1", "Bearer") are no keys, and striking them out would eat the words of the message.
        for part in sorted((part for part in found if len(part) >= SHORTEST_KEY), key=len, reverse=True):
            text = text.replace(part, "***")
        return text

    def _keys(self) -> list[str]:
        """Values of arguments that are called keys: --api-key=VALUE, --token VALUE."""
        pairs = [tuple(arg.partition("=")[::2]) for arg in self.args]
        pairs += [(arg, after) for arg, after in zip(self.args, self.args[1:], strict=False) if "=" not in arg]
        return [value for name, value in pairs if name.startswith("-") and _KEY_NAME.search(name)]


def _parted(url: str) -> tuple[str, str, str]:
    """User and password; the address without them, query and fragment; the query."""
    scheme, mark, rest = url.partition("#")[0].partition("://")
    place, _, query = rest.partition("?")
    host, slash, path = place.partition("/")
    user, _, host = host.rpartition("@")
    return user, f"{scheme}{mark}{host}{slash}{path}", query


class McpChoices(Record):
    """The MCP servers that tools may name. The JSON of desktop clients, with its `mcpServers`, fits too."""

    servers: dict[str, McpServer] = Field(default_factory=dict, validation_alias=AliasChoices("servers", "mcpServers"))

    def __str__(self) -> str:
        """Names and kinds alone: arguments may hold keys too."""
        kinds = (f"{name} ({'command' if server.command else 'url'})" for name, server in self.servers.items())
        return ", ".join(kinds) or "(none)"


def from_text(value: object) -> object:
    """A variable of the environment holds a table as JSON. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error})") from error
