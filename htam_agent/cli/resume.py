"""`htam resume`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from htam_agent.cli.options import (
    JsonOption,
    LogFormatOption,
    MaxCostOption,
    MaxSecondsOption,
    MaxTokensOption,
    MemoryOption,
    PreflightOption,
    PricesOption,
)

if TYPE_CHECKING:
    from langgraph.runtime import RunControl

    from htam_agent.cli.progress import Listener
    from htam_agent.runs.records import Result


def resume_command(
    run: Annotated[
        str,
        typer.Argument(help="A run's folder, its name under the runs folder, last, or all that wait."),
    ],
    verdicts: Annotated[
        Path | None, typer.Option(help="The results of `htam evaluate --batch` that the run waits for.")
    ] = None,
    approve: Annotated[
        str | None, typer.Option(help="yes or no to what the run waits for, or the direction that it is to take.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="With all: so many runs go on at once.")] = 4,
    memory: MemoryOption = None,
    max_seconds: MaxSecondsOption = None,
    max_cost: MaxCostOption = None,
    max_tokens: MaxTokensOption = None,
    prices: PricesOption = None,
    preflight: PreflightOption = None,
    log_format: LogFormatOption = None,
    as_json: JsonOption = False,
) -> int:
    """Go on with a run that was killed or interrupted, exactly where it stopped, or with what it waits for."""
    from htam_agent.cli.optimize import exit_code
    from htam_agent.cli.progress import run_with_progress
    from htam_agent.settings import Settings

    given = {
        "memory": memory, "log_format": log_format, "max_seconds": max_seconds, "max_cost": max_cost,
        "max_tokens": max_tokens, "prices": prices, "preflight": preflight,
    }  # fmt: skip
    settings = Settings.load({name: value for name, value in given.items() if value is not None})

    if run == "all":
        from htam_agent.cli.resume_all import resume_all
        from htam_agent.errors import UsageError

        if (verdicts is None) == (approve is None):
            raise UsageError("Runs go on with one kind of answer.", "Give --verdicts FILE or --approve yes.")
        return resume_all(settings, verdicts, approve, jobs, as_json)

    def work(listen: Listener, control: RunControl) -> Result:
        from htam_agent.api import resume

        return resume(run, listen=listen, control=control, settings=settings, verdicts=verdicts, approve=approve)

    return exit_code(run_with_progress(work, settings, as_json), require_faster=False, faster_than="best")
