"""What the command line prints: one JSON object as the last line of stdout, or text for people; errors with remedy."""

from __future__ import annotations

import json
import sys
import traceback
from typing import NoReturn

import typer
from pydantic import Field

from htam_agent.errors import HtamError
from htam_agent.words import Record

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended."""


class ErrorBody(Record):
    """What was wrong and what to do."""

    code: str
    message: str
    remedy: str


class ErrorObject(Record):
    """The contract's error object; `schema` is that of the command that failed."""

    schema_: str = Field("htam.error/1", alias="schema", serialization_alias="schema")
    error: ErrorBody


def fail(error: HtamError, command: str, as_json: bool) -> NoReturn:
    """Print the error in the asked form and leave with its exit code."""
    _print_error(error.code, error.message, error.remedy, command, as_json)
    raise SystemExit(error.exit_code)


def fail_interrupted(command: str, as_json: bool) -> NoReturn:
    """Ctrl-C before there was a run (a run's own interrupt says how to go on)."""
    message = "The command was interrupted before its end."
    _print_error("interrupted", message, "Start the command again.", command, as_json)
    raise SystemExit(INTERRUPTED)


def fail_internal(error: BaseException, command: str, as_json: bool) -> NoReturn:
    """A bug of ours: the traceback goes to stderr, the object says so."""
    traceback.print_exception(error, file=sys.stderr)
    message = f"Internal error: {type(error).__name__}: {error}."
    _print_error("internal", message, "Please report it with the traceback on stderr.", command, as_json)
    raise SystemExit(3)


def _print_error(code: str, message: str, remedy: str, command: str, as_json: bool) -> None:
    if as_json:
        body = ErrorObject(schema_=f"htam.{command}/1", error=ErrorBody(code=code, message=message, remedy=remedy))
        typer.echo(body.model_dump_json(by_alias=True))
    else:
        typer.echo(f"error: {message}\n       {remedy}", err=True)


def print_json(value: object) -> None:
    """One object on one line of stdout."""
    typer.echo(value if isinstance(value, str) else json.dumps(value))
