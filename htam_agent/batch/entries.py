"""The batch file: one JSON object a line. A line that does not fit is a result of its own and stops no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from htam_agent.errors import UsageError
from htam_agent.words import Policy, Precision, Protocol, Record

FORM = (
    'A line is one object: {"task": FILE, "kernel": FILE} and, if wanted, id, backend, precision, protocol, policy, '
    'deep, compile_baseline; or {"task": FILE, "facts": true}.'
)
LINE_LIMIT = 1 << 20
"""Most bytes of a line: more is no entry."""


class Entry(Record):
    """One line of a batch file. Paths are relative to the batch file's folder; what is null comes from the settings."""

    task: str = Field(min_length=1)
    """FILE, FILE:Class or pkg.mod:factory."""
    kernel: str = ""
    facts: bool = False
    """Not a verdict on a kernel but what is known of the task here: operator, device, baselines, floor."""
    id: str = ""
    """The user's own name for it, repeated in the result."""
    backend: Literal["auto", "cuda", "cpp"] | None = None
    precision: Precision | None = None
    protocol: Protocol | None = None
    policy: Policy | None = None
    deep: bool | None = None
    compile_baseline: bool | None = None

    @model_validator(mode="after")
    def _one_question(self) -> Self:
        if self.facts and self.kernel:
            raise ValueError("an entry for facts has no kernel")
        if not self.facts and not self.kernel:
            raise ValueError("a kernel is missing")
        return self


@dataclass(frozen=True)
class Line:
    """A line of the file, counted from 1. `entry` is None where the line does not fit; `problem` says why."""

    number: int
    raw: bytes
    entry: Entry | None = None
    problem: str = ""


def read_batch(path: Path) -> list[Line]:
    """Every line that is not blank. Raises UsageError when the file cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"The batch file {str(path)!r} cannot be read: {error.strerror}.", "Check the path. " + FORM, "batch-file"
        ) from error
    return list(_lines(data.removeprefix(b"\xef\xbb\xbf")))


def _lines(data: bytes) -> Iterator[Line]:
    for number, raw in enumerate(data.split(b"\n"), start=1):
        if raw.strip():
            yield parse_line(number, raw.strip())


def parse_line(number: int, raw: bytes) -> Line:
    """The entry of one line, or why there is none."""
    if len(raw) > LINE_LIMIT:
        return Line(number, raw, problem=f"it has {len(raw)} bytes, more than {LINE_LIMIT}")
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return Line(number, raw, problem="it is not UTF-8 text")
    except (ValueError, RecursionError) as error:
        return Line(number, raw, problem=f"it is not JSON: {error}")
    if not isinstance(value, dict):
        return Line(number, raw, problem=f"it is no object but a {type(value).__name__}")
    try:
        return Line(number, raw, entry=Entry.model_validate(value))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        return Line(number, raw, problem=f"{name!r}: {first['msg']}")


def located(folder: Path, text: str) -> str:
    """A task's text with a relative file taken from `folder`; pkg.mod:factory stays as it is."""
    left, _, symbol = text.rpartition(":")
    for file, rest in ((text, ""), (left, f":{symbol}")):
        if file and (file.endswith(".py") or (folder / file).is_file()):
            return f"{folder / file}{rest}"
    return text
