"""`htam prompts`: list, show and check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field

from htam_agent.cli.options import JsonOption
from htam_agent.cli.output import print_json
from htam_agent.words import Record

if TYPE_CHECKING:
    from pathlib import Path

    from htam_agent.coding.prompting import PromptFile, Prompts

prompts_app = typer.Typer(
    name="prompts", help="Look at what the model coder sends, and check prompts of your own.", no_args_is_help=True
)

FolderOption = Annotated[
    str | None, typer.Option("--prompts", help="Folder of your own prompts (default: the setting HTAM_PROMPTS).")
]


BackendOption = Annotated[
    Literal["cpp", "cuda"], typer.Option("--backend", help="Of a prompt that each backend has its own file of: which.")
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
    parts: list[str] = Field(default_factory=list)
    """The files that it includes, with where they come from."""
    tokens: int | None = None
    """Estimated tokens of the longest rendered example; null where none was rendered."""


class PromptsObject(Record):
    """What `htam prompts list --json` and `check --json` print."""

    schema_: Literal["htam.prompts/1"] = Field("htam.prompts/1", alias="schema", serialization_alias="schema")
    prompts: list[PromptLine]


class PromptObject(Record):
    """What `htam prompts show --json` prints."""

    schema_: Literal["htam.prompts/1"] = Field("htam.prompts/1", alias="schema", serialization_alias="schema")
    prompt: PromptLine
    text: str
    rendered: str | None = None
    """The prompt with example values, where it was asked for."""


@prompts_app.command("list")
def list_command(folder: FolderOption = None, as_json: JsonOption = False) -> int:
    """List the prompts with the file that each comes from."""
    lines = _lines(_prompts(folder))
    if as_json:
        print_json(PromptsObject(schema_="htam.prompts/1", prompts=lines).model_dump_json(by_alias=True))
        return 0
    for line in lines:
        typer.echo(f"{line.name:<12} {line.origin:<9} {line.digest}  {line.path}")
    return 0


@prompts_app.command("show")
def show_command(
    name: str,
    backend: BackendOption = "cuda",
    rendered: Annotated[
        bool, typer.Option("--rendered", help="With example values: what a model would read, and its size.")
    ] = False,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print one prompt as it is used: the template, or with --rendered an example of what a model reads."""
    prompts = _prompts(folder)
    file = prompts.files[name] if name in prompts.files else prompts.file(name, backend)
    example = _longest(prompts, file) if rendered else None
    if as_json:
        line = next(line for line in _lines(prompts) if line.name == file.name)
        shown = PromptObject(schema_="htam.prompts/1", prompt=line, text=file.text, rendered=example)
        print_json(shown.model_dump_json(by_alias=True))
        return 0
    typer.echo((file.text if example is None else example).rstrip("\n"))
    return 0


@prompts_app.command("check")
def check_command(folder: FolderOption = None, as_json: JsonOption = False) -> int:
    """Load every prompt and render it with example values for both backends; the first fault ends it with status 2."""
    from htam_agent.coding.shortening import estimated_tokens

    prompts = _prompts(folder)
    longest = {name: estimated_tokens(_longest(prompts, file)) for name, file in prompts.files.items()}
    lines = [line.model_copy(update={"tokens": longest[line.name]}) for line in _lines(prompts)]
    if as_json:
        print_json(PromptsObject(schema_="htam.prompts/1", prompts=lines).model_dump_json(by_alias=True))
        return 0
    for line in lines:
        used = f", with {', '.join(line.parts)}" if line.parts else ""
        typer.echo(f"{line.name:<12} {line.origin:<9} ok, about {line.tokens} tokens in the example{used}")
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


def _longest(prompts: Prompts, file: PromptFile) -> str:
    """The longest of the rendered examples of one file."""
    from htam_agent.coding.examples import examples_of

    return max((text for _, text in examples_of(prompts, file)), key=len)


def _lines(prompts: Prompts) -> list[PromptLine]:
    from htam_agent.coding.prompting import VARIABLES

    return [
        PromptLine(
            name=file.name,
            path=file.path,
            origin="user" if file.origin == "user" else "built-in",
            digest=file.digest,
            variables=sorted(VARIABLES[file.prompt]),
            parts=list(file.parts),
        )
        for file in prompts.files.values()
    ]
