"""`htam resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from htam_agent.cli.options import JsonOption, LogFormatOption, MemoryOption

if TYPE_CHECKING:
    from langgraph.runtime import RunControl

    from htam_agent.cli.progress import Listener
    from htam_agent.runs.records import Result


def resume_command(
    run: Annotated[str, typer.Argument(help="A run's folder, its name under the runs folder, or last.")],
    memory: MemoryOption = None,
    log_format: LogFormatOption = None,
    as_json: JsonOption = False,
) -> int:
    """Go on with a run that was killed or interrupted, exactly where it stopped."""
    from htam_agent.cli.optimize import exit_code
    from htam_agent.cli.progress import run_with_progress
    from htam_agent.settings import Settings

    given = {"memory": memory, "log_format": log_format}
    settings = Settings.load({name: value for name, value in given.items() if value is not None})

    def work(listen: Listener, control: RunControl) -> Result:
        from htam_agent.api import resume

        return resume(run, listen=listen, control=control, settings=settings)

    return exit_code(run_with_progress(work, settings, as_json), require_faster=False, faster_than="best")
