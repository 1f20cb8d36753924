"""`htam config`."""

from __future__ import annotations

from typing import Literal

import typer
from pydantic import Field

from htam_agent.cli.options import JsonOption
from htam_agent.cli.output import print_json
from htam_agent.words import Record


class SettingLine(Record):
    """One setting. `value` is its text, null when unset; a secret is masked."""

    name: str
    value: str | None
    origin: Literal["default", "htam.toml", ".env", "environment", "command line", "call"]
    variable: str
    """The environment variable that sets it."""
    description: str


class ConfigObject(Record):
    """What `htam config --json` prints."""

    schema_: Literal["htam.config/1"] = Field("htam.config/1", alias="schema", serialization_alias="schema")
    settings: list[SettingLine]
    unknown_variables: list[str] = Field(default_factory=list)
    """HTAM_* variables of the environment that name no setting."""


def config_command(as_json: JsonOption = False) -> int:
    """Show every setting, its value and where the value came from."""
    import os

    from htam_agent.settings import PREFIX, Settings, unknown_variables

    lines = [
        SettingLine(
            name=name,
            value=value,
            origin=origin,
            variable=PREFIX + name.upper(),
            description=Settings.model_fields[name].description or "",
        )
        for name, value, origin in Settings.load().explain()
    ]
    unknown = unknown_variables(os.environ)
    if as_json:
        shown = ConfigObject(schema_="htam.config/1", settings=lines, unknown_variables=unknown)
        print_json(shown.model_dump_json(by_alias=True))
        return 0
    width = max(len(line.name) for line in lines)
    for line in lines:
        typer.echo(f"{line.name:<{width}}  {line.value if line.value is not None else '(unset)':<20}  {line.origin}")
    for variable in unknown:
        typer.echo(f"warning: {variable} names no setting.", err=True)
    return 0
