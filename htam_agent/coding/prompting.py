"""Prompts: Markdown files with Jinja, a user's folder before the built-in one, file by file.

A prompt NAME is the first file that exists of NAME-BACKEND.md and NAME.md in the user's folder, then in the built-in
one. Files in `parts/` are what prompts include; a user's part wins too. Templates run in Jinja's sandbox and see plain
values alone; a variable that does not exist is an error when prompts are loaded, not a hole in what the model reads.
Compiler logs, sources and model output enter as fenced values, never as templates.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from jinja2 import (
    ChoiceLoader,
    FileSystemLoader,
    StrictUndefined,
    Template,
    TemplateError,
    TemplateNotFound,
    TemplateSyntaxError,
    meta,
    nodes,
)
from jinja2.sandbox import SandboxedEnvironment

from htam_agent.coding.shortening import Values, estimated_tokens, shorter
from htam_agent.errors import SettingsError
from htam_agent.words import Record

BACKENDS: tuple[str, ...] = ("cpp", "cuda")
NAMES: tuple[str, ...] = ("system", "code", "repair", "direct")
"""What is asked for: the contract (system), a kernel (code), a mended one (repair), a direction (direct)."""
COMMON = frozenset({"backend", "constant", "launcher_name", "architecture"})
VARIABLES: dict[str, frozenset[str]] = {
    "system": COMMON,
    "code": COMMON
    | {
        "task_source", "operator", "graph", "device", "simd", "limits", "ceilings", "floor_ms", "target", "precision",
        "policy", "direction", "direction_why", "strategies", "best", "history", "step", "index", "shortened",
    },
    "repair": COMMON
    | {
        "kind", "stage", "reason", "cause", "evidence", "difference", "attempt", "tried", "problem", "cut_off",
        "ending",
    },
    "direct": frozenset({"operator", "device", "best", "history", "step", "steps_left", "directions"}),
}  # fmt: skip
"""What each prompt, and every part that it includes, may use."""
PARTS = "parts"
LIMIT_TOKENS = 8000
"""Estimated tokens of one prompt, above which its least useful parts are shortened."""
_FAULTS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError, AttributeError)


class PromptFile(Record):
    """One prompt as found. `name` is that of the file without `.md`; `origin` is `built-in` or `user`."""

    name: str
    prompt: str
    """What it is a file of: one of NAMES."""
    backend: str = ""
    """Empty: of every backend."""
    path: str
    origin: str
    text: str
    parts: tuple[str, ...] = ()
    """The parts that it includes, at any depth, with where they lie: `parts/rules.md (user)`."""

    @property
    def digest(self) -> str:
        """First 12 hex digits of the text's SHA-256: what a run records."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]


def built_in_folder() -> Path:
    """The shipped prompts: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_prompts"
    return installed if installed.is_dir() else package.parent / "prompts"


def fenced(text: object, language: str = "") -> str:
    """The text in a Markdown fence that is longer than any run of backticks in it, so that it cannot end early."""
    words = str(text)
    longest = max((len(run) for run in re.findall(r"`+", words)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{words.rstrip()}\n{fence}"


class Prompts:
    """The prompts of a run. `folder` is the user's (HTAM_PROMPTS), or None.

    Raises SettingsError when the folder is missing or holds a file that is no prompt, a file cannot be read or does not
    parse, or one uses a variable that its prompt does not have.
    """

    def __init__(self, folder: Path | None = None, limit_tokens: int = LIMIT_TOKENS) -> None:
        if folder is not None and not folder.is_dir():
            raise SettingsError(
                f"The prompts folder {str(folder)!r} (HTAM_PROMPTS) does not exist.",
                "Name a folder.",
                "prompts-missing",
            )
        self._places = ([("user", folder)] if folder is not None else []) + [("built-in", built_in_folder())]
        self._limit = limit_tokens
        self._environment = SandboxedEnvironment(
            loader=ChoiceLoader([FileSystemLoader(place) for _, place in self._places]),
            undefined=StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=False,
        )
        self._environment.filters["fenced"] = fenced
        self._templates: dict[str, Template] = {}
        if folder is not None:
            self._refuse_strangers(folder)
        self.files = {file.name: file for file in self._all()}

    def file(self, name: str, backend: str = "") -> PromptFile:
        """The file behind a prompt for this backend. Raises SettingsError for a name that is none of NAMES."""
        for found in (f"{name}-{backend}", name):
            if found in self.files:
                return self.files[found]
        raise SettingsError(f"There is no prompt {name!r}.", f"Choose one of {', '.join(NAMES)}.", "prompt-unknown")

    def render(self, name: str, values: Mapping[str, object]) -> str:
        """One prompt with its values, its least useful parts shortened where it would be longer than the limit (the
        task and the rules never are; what was shortened is said in the variable `shortened`).

        Raises SettingsError when the template fails on them.
        """
        file = self.file(name, str(values.get("backend", "")))
        text = self._render(file, values)
        if name != "code":
            return text
        for less in shorter(values):
            if estimated_tokens(text) <= self._limit:
                break
            text = self._render(file, less)
        return text

    def _render(self, file: PromptFile, values: Values) -> str:
        try:
            if file.name not in self._templates:
                self._templates[file.name] = self._environment.from_string(file.text)
            text: str = self._templates[file.name].render(dict(values))
        except _FAULTS as error:
            raise SettingsError(
                f"The prompt {file.path} fails: {error}.", "Mend it, or remove it to use the built-in one.", "prompt"
            ) from error
        return text.strip() + "\n"

    def _all(self) -> Iterator[PromptFile]:
        """One file for each prompt and backend. A user's file for all backends wins over a built-in one for one."""
        for prompt in NAMES:
            found = {backend: self._find(prompt, backend) for backend in BACKENDS}
            if all(file is not None and not file.backend for file in found.values()):
                yield self._checked(found[BACKENDS[0]])
                continue
            for backend, file in found.items():
                if file is None:
                    raise SettingsError(
                        f"The built-in prompt {prompt}-{backend}.md is missing from {built_in_folder()}.",
                        "Install htam_agent again.",
                        "prompt",
                    )
                yield self._checked(file.model_copy(update={"name": f"{prompt}-{backend}", "backend": backend}))

    def _find(self, prompt: str, backend: str) -> PromptFile | None:
        for origin, place in self._places:
            for name, of in ((f"{prompt}-{backend}", backend), (prompt, "")):
                path = place / f"{name}.md"
                if path.is_file():
                    return PromptFile(
                        name=name, prompt=prompt, backend=of, path=str(path), origin=origin, text=_read(path)
                    )
        return None

    def _checked(self, file: PromptFile | None) -> PromptFile:
        """The file with its parts. Raises SettingsError for what does not parse or is not known."""
        assert file is not None, "asked for files that were found"
        parts: dict[str, str] = {}
        unknown = self._unknown(file.path, file.text, VARIABLES[file.prompt], parts)
        if unknown:
            path, names = unknown
            known = ", ".join(sorted(VARIABLES[file.prompt]))
            raise SettingsError(
                f"The prompt {path} uses {', '.join(names)}, which {file.prompt} does not have.",
                f"It may use: {known}.",
                "prompt",
            )
        return file.model_copy(update={"parts": tuple(parts.values())})

    def _unknown(
        self, path: str, text: str, known: frozenset[str], parts: dict[str, str]
    ) -> tuple[str, list[str]] | None:
        """The first template, at any depth, that uses names that are not known; notes the parts on the way."""
        tree = self._parsed(path, text)
        names = sorted(meta.find_undeclared_variables(tree) - known)
        if names:
            return path, names
        for part in meta.find_referenced_templates(tree):
            if part is None:
                raise SettingsError(
                    f"The prompt {path} includes a file whose name is computed.", "Name the file in it.", "prompt"
                )
            if part in parts:
                continue
            origin, place = self._part(path, part)
            parts[part] = f"{part} ({origin})"
            found = self._unknown(str(place), _read(place), known, parts)
            if found:
                return found
        return None

    def _part(self, path: str, part: str) -> tuple[str, Path]:
        for origin, place in self._places:
            if (place / part).is_file() and ".." not in Path(part).parts:
                return origin, place / part
        raise SettingsError(
            f"The prompt {path} includes {part}, which does not exist.",
            f"Look for it in the built-in folder {built_in_folder()}.",
            "prompt",
        )

    def _parsed(self, path: str, text: str) -> nodes.Template:
        try:
            tree = self._environment.parse(text)
            self._environment.from_string(text)
        except TemplateSyntaxError as error:
            raise SettingsError(
                f"The prompt {path} does not parse: {error.message} (line {error.lineno}).", "Mend it.", "prompt"
            ) from error
        except (TemplateError, TemplateNotFound, RecursionError) as error:
            raise SettingsError(f"The prompt {path} does not parse: {error}.", "Mend it.", "prompt") from error
        return tree

    def _refuse_strangers(self, folder: Path) -> None:
        """A file that no prompt is made of would be left unread, silently: mostly its name is misspelled."""
        names = {f"{name}{suffix}.md" for name in NAMES for suffix in ("", *(f"-{backend}" for backend in BACKENDS))}
        for path in sorted(folder.glob("*.md")):
            if path.name in names or path.stem.upper() == "README":
                continue
            near = difflib.get_close_matches(path.name, names, 1)
            raise SettingsError(
                f"The prompts folder holds {path.name}, which is no prompt's name.",
                f"Rename it{f' to {near[0]}' if near else ''}, or move it: prompts are {', '.join(sorted(names))}.",
                "prompt-unknown",
            )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The prompt {path} cannot be read: {error}.", "Mend it.", "prompt") from error
