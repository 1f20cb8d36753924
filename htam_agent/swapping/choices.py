"""What the settings `tools` and `mcp` hold. Nothing is looked up here (finding.py does)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator

from htam_agent.words import Record

SeamName = Literal["compile", "run", "profile", "coder", "evaluator", "embedder", "executor"]
MCP_PREFIX = "mcp:"


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
        """Without the environment and the headers, which may hold keys."""
        return self.url.partition("?")[0] if self.url else " ".join([self.command or "", *self.args])


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
