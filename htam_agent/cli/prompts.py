"""`htam prompts`: list, show and check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field

from htam_agent.cli.options import JsonOption
from htam_agent.cli.output import print_json
from htam_agent.errors import SettingsError
from htam_agent.words import Record

if TYPE_CHECKING:
    from pathlib import Path

    from htam_agent.coding.prompting import Prompts

prompts_app = typer.Typer(
    name="prompts", help="Look at what the model coder sends, and check prompts of your own.", no_args_is_help=True
)

FolderOption = Annotated[
    str | None, typer.Option("--prompts", help="Folder of your own prompts (default: the setting HTAM_PROMPTS).")
]


class PromptLine(Record):
    """One prompt in use."""

    name: str
    path: str
    origin: Literal["built-in", "user"]
    digest: str
    """First 12 hex digits of the text's SHA-256."""
    variables: list[str]
    """What the prompt may use."""


class PromptsObject(Record):
    """What `htam prompts list --json` and `check --json` print."""

    schema_: Literal["htam.prompts/1"] = Field("htam.prompts/1", alias="schema", serialization_alias="schema")
    prompts: list[PromptLine]


class PromptObject(Record):
    """What `htam prompts show --json` prints."""

    schema_: Literal["htam.prompts/1"] = Field("htam.prompts/1", alias="schema", serialization_alias="schema")
    prompt: PromptLine
    text: str


@prompts_app.command("list")
def list_command(folder: FolderOption = None, as_json: JsonOption = False) -> int:
    """List the prompts with the file that each comes from."""
    lines = _lines(_prompts(folder))
    if as_json:
        print_json(PromptsObject(schema_="htam.prompts/1", prompts=lines).model_dump_json(by_alias=True))
        return 0
    for line in lines:
        typer.echo(f"{line.name:<10} {line.origin:<9} {line.digest}  {line.path}")
    return 0


@prompts_app.command("show")
def show_command(name: str, folder: FolderOption = None, as_json: JsonOption = False) -> int:
    """Print one prompt as it is used: the template, before its values are put in."""
    prompts = _prompts(folder)
    if name not in prompts.files:
        raise SettingsError(
            f"There is no prompt {name!r}.", f"Choose one of {', '.join(prompts.files)}.", "prompt-unknown"
        )
    if as_json:
        line = next(line for line in _lines(prompts) if line.name == name)
        shown = PromptObject(schema_="htam.prompts/1", prompt=line, text=prompts.files[name].text)
        print_json(shown.model_dump_json(by_alias=True))
        return 0
    typer.echo(prompts.files[name].text.rstrip("\n"))
    return 0


@prompts_app.command("check")
def check_command(folder: FolderOption = None, as_json: JsonOption = False) -> int:
    """Load every prompt and render it with example values for both backends; the first fault ends it with status 2."""
    from htam_agent.coding.examples import render_examples

    prompts = _prompts(folder)
    render_examples(prompts)
    if as_json:
        print_json(PromptsObject(schema_="htam.prompts/1", prompts=_lines(prompts)).model_dump_json(by_alias=True))
        return 0
    for line in _lines(prompts):
        typer.echo(f"{line.name:<10} {line.origin:<9} ok")
    return 0


def _prompts(folder: str | None) -> Prompts:
    from pathlib import Path

    from htam_agent.coding.prompting import Prompts

    place: Path | None
    if folder is not None:
        place = Path(folder)
    else:
        from htam_agent.settings import Settings

        place = Settings.load().prompts
    return Prompts(place)


def _lines(prompts: Prompts) -> list[PromptLine]:
    from htam_agent.coding.prompting import VARIABLES

    return [
        PromptLine(
            name=file.name,
            path=file.path,
            origin="user" if file.origin == "user" else "built-in",
            digest=file.digest,
            variables=sorted(VARIABLES[file.name]),
        )
        for file in prompts.files.values()
    ]
