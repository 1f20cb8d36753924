"""`htam resume all`: every run that waits goes on with its part of one verdicts file, or with one answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from pydantic import Field

from htam_agent.cli.output import ErrorBody, print_json
from htam_agent.cli.progress import waiting_text
from htam_agent.words import Record

if TYPE_CHECKING:
    from htam_agent.errors import HtamError
    from htam_agent.runs.answers import Line
    from htam_agent.runs.folder import RunFolder
    from htam_agent.runs.records import Result
    from htam_agent.runs.waiting import Waiting
    from htam_agent.settings import Settings


class RunFailed(Record):
    """A run that could not go on, one line of `htam resume all --json`; the others did."""

    schema_: str = Field("htam.resume/1", alias="schema", serialization_alias="schema")
    run: str
    error: ErrorBody
    exit_code: int

    def to_json(self) -> str:
        """One line of JSON."""
        return self.model_dump_json(by_alias=True)


def resume_all(settings: Settings, verdicts: Path | None, approve: str | None, jobs: int, as_json: bool) -> int:
    """Prints what each run came to as it comes; 0 when all have a correct result, else the worst exit code."""
    from htam_agent.cli.optimize import exit_code
    from htam_agent.runs.records import Result

    worst = 0
    for outcome in outcomes(settings, verdicts, approve, jobs):
        if as_json:
            print_json(outcome.to_json())
        if isinstance(outcome, Result):
            code = exit_code(outcome, require_faster=False, faster_than="best")
            text = f"{outcome.run}: {outcome.verdict}"
        elif isinstance(outcome, RunFailed):
            code, text = outcome.exit_code, f"{outcome.run}: {outcome.error.message} {outcome.error.remedy}"
        else:
            code, text = 1, waiting_text(outcome)
        if not as_json:
            typer.echo(text)
        worst = max(worst, code)
    return worst


def outcomes(
    settings: Settings, verdicts: Path | None, approve: str | None, jobs: int
) -> Iterator[Result | Waiting | RunFailed]:
    """What each run that waits for this kind of answer came to, in the runs' order.

    Raises RunError when the verdicts file cannot be read.
    """
    from htam_agent.runs.answers import read_results
    from htam_agent.runs.exchange import EXTERNAL, waiting_runs

    lines = read_results(verdicts) if verdicts is not None else None
    kinds = EXTERNAL if verdicts is not None else ("direction", "code")
    folders = [folder for folder, _ in waiting_runs(Path(settings.runs), kinds)]
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        yield from pool.map(lambda folder: _outcome(folder, settings, lines, approve), folders)


def _outcome(
    folder: RunFolder, settings: Settings, lines: list[Line] | None, approve: str | None
) -> Result | Waiting | RunFailed:
    from htam_agent.api import resume
    from htam_agent.errors import HtamError
    from htam_agent.graph.runner import Paused

    try:
        return resume(str(folder.root), settings=settings, verdicts=lines, approve=approve)
    except Paused as paused:
        return paused.waiting
    except HtamError as error:
        return _failed(folder, error)


def _failed(folder: RunFolder, error: HtamError) -> RunFailed:
    body = ErrorBody(code=error.code, message=error.message, remedy=error.remedy)
    return RunFailed(run=str(folder.root), error=body, exit_code=error.exit_code)
