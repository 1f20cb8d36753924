"""Prompts: Markdown files with Jinja, a user's folder before the built-in one, file by file.

Templates run in Jinja's sandbox and see plain values alone; a variable that does not exist is an error when the prompt
is loaded, not a hole in what the model reads. Compiler logs and model output enter as values, never as templates.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, meta
from jinja2.sandbox import SandboxedEnvironment

from htam_agent.errors import SettingsError
from htam_agent.words import Record

NAMES: tuple[str, ...] = ("system", "generate", "repair")
COMMON = frozenset({"backend", "constant", "launcher_name", "architecture"})
VARIABLES: dict[str, frozenset[str]] = {
    "system": COMMON,
    "generate": COMMON
    | {
        "task_source", "operator", "graph", "device", "ceilings", "floor_ms", "precision", "policy", "direction",
        "direction_why", "strategies", "best", "history", "step", "index",
    },
    "repair": COMMON | {"kind", "stage", "reason", "evidence", "attempt", "tried", "problem"},
}  # fmt: skip
"""What each prompt may use."""


class PromptFile(Record):
    """One prompt as found: `origin` is `built-in` or `user`."""

    name: str
    path: str
    origin: str
    text: str

    @property
    def digest(self) -> str:
        """First 12 hex digits of the text's SHA-256: what a run records."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]


def built_in_folder() -> Path:
    """The shipped prompts: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_prompts"
    return installed if installed.is_dir() else package.parent / "prompts"


def fenced(text: str, language: str = "") -> str:
    """The text in a Markdown fence that is longer than any inside it, so that it cannot end early."""
    runs = [len(run) for run in re.findall(r"`{3,}", text)]
    fence = "`" * max(3, *(run + 1 for run in runs)) if runs else "```"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


class Prompts:
    """The prompts of a run. `folder` is the user's (HTAM_PROMPTS), or None.

    Raises SettingsError when the folder is missing, a file cannot be read or does not parse, or uses a variable that
    its prompt does not have.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is not None and not folder.is_dir():
            raise SettingsError(
                f"The prompts folder {str(folder)!r} (HTAM_PROMPTS) does not exist.",
                "Name a folder.",
                "prompts-missing",
            )
        self._environment = SandboxedEnvironment(
            undefined=StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=False,
        )
        self._environment.filters["fenced"] = fenced
        self.files = {name: self._find(name, folder) for name in NAMES}
        for file in self.files.values():
            self._check(file)

    def render(self, name: str, values: Mapping[str, object]) -> str:
        """One prompt with its values. Raises SettingsError when the template fails on them."""
        file = self.files[name]
        try:
            return self._environment.from_string(file.text).render(dict(values)).strip() + "\n"
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise SettingsError(
                f"The prompt {file.path} fails: {error}.", "Mend it, or remove it to use the built-in one.", "prompt"
            ) from error

    @staticmethod
    def _find(name: str, folder: Path | None) -> PromptFile:
        places = ([("user", folder)] if folder is not None else []) + [("built-in", built_in_folder())]
        for origin, place in places:
            path = place / f"{name}.md"
            if path.is_file():
                try:
                    return PromptFile(name=name, path=str(path), origin=origin, text=path.read_text(encoding="utf-8"))
                except (OSError, UnicodeDecodeError) as error:
                    raise SettingsError(f"The prompt {path} cannot be read: {error}.", "Mend it.", "prompt") from error
        raise SettingsError(
            f"The built-in prompt {name}.md is missing from {built_in_folder()}.", "Install htam_agent again.", "prompt"
        )

    def _check(self, file: PromptFile) -> None:
        try:
            used = meta.find_undeclared_variables(self._environment.parse(file.text))
            self._environment.from_string(file.text)
        except TemplateSyntaxError as error:
            raise SettingsError(
                f"The prompt {file.path} does not parse: {error.message} (line {error.lineno}).", "Mend it.", "prompt"
            ) from error
        except TemplateError as error:
            raise SettingsError(f"The prompt {file.path} does not parse: {error}.", "Mend it.", "prompt") from error
        unknown = sorted(used - VARIABLES[file.name])
        if unknown:
            known = ", ".join(sorted(VARIABLES[file.name]))
            raise SettingsError(
                f"The prompt {file.path} uses {', '.join(unknown)}, which {file.name}.md does not have.",
                f"It may use: {known}.",
                "prompt",
            )
