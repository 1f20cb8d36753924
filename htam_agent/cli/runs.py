"""`htam runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field

from htam_agent.cli.options import JsonOption
from htam_agent.cli.output import print_json
from htam_agent.runs.waiting import WAITING_FILE, Waiting
from htam_agent.words import Record


class RunLine(Record):
    """One run in the list. `state`: finished, unfinished (can be resumed), waiting (for `reason`) or corrupt."""

    run: str
    task: str = ""
    created: str = ""
    state: Literal["finished", "unfinished", "waiting", "corrupt"]
    steps: int = 0
    verdict: str = ""
    speedup: float | None = None
    kernel: str | None = None
    reason: str = ""


class RunsObject(Record):
    """What `htam runs --json` prints."""

    schema_: Literal["htam.runs/1"] = Field("htam.runs/1", alias="schema", serialization_alias="schema")
    folder: str
    runs: list[RunLine]


runs_app = typer.Typer(help="List the runs, oldest first, with what they came to.")
RunsOption = Annotated[Path | None, typer.Option("--runs", help="The runs folder.")]


class PendingObject(Record):
    """What `htam runs pending --json` prints: every run that waits, and the batch file that was written, if any."""

    schema_: Literal["htam.pending/1"] = Field("htam.pending/1", alias="schema", serialization_alias="schema")
    waiting: list[Waiting]
    batch: str | None = None
    entries: int = 0


@runs_app.callback(invoke_without_command=True)
def runs_command(
    context: typer.Context,
    folder: RunsOption = None,
    as_json: JsonOption = False,
) -> int:
    """List the runs, oldest first, with what they came to."""
    from htam_agent.settings import Settings

    if context.invoked_subcommand is not None:
        return 0

    settings = Settings.load({"runs": folder} if folder else {})
    found = RunsObject(schema_="htam.runs/1", folder=str(settings.runs), runs=list_lines(Path(settings.runs)))
    if as_json:
        print_json(found.model_dump_json(by_alias=True))
        return 0
    for line in found.runs:
        speed = f"{line.speedup:.2f}x over best" if line.speedup is not None else ""
        typer.echo(f"{line.run}  {line.state:<10} {line.steps} steps  {line.verdict} {speed}{line.reason}".rstrip())
    if not found.runs:
        typer.echo(f"No runs in {found.folder}. Start one with `htam optimize TASK`.")
    return 0


@runs_app.command("pending")
def pending_command(
    batch: Annotated[
        Path | None, typer.Option(help="Write what the runs ask another machine into this file, for `htam evaluate`.")
    ] = None,
    folder: RunsOption = None,
    as_json: JsonOption = False,
) -> int:
    """List the runs that wait for an answer; with --batch, write one batch file over those that wait for verdicts."""
    from htam_agent.cli.progress import waiting_text
    from htam_agent.runs.exchange import EXTERNAL, waiting_runs, write_batch
    from htam_agent.settings import Settings

    settings = Settings.load({"runs": folder} if folder else {})
    waiting = [each for _, each in waiting_runs(Path(settings.runs), (*EXTERNAL, "direction", "code"))]
    asked = [each for each in waiting if each.kind in EXTERNAL]
    entries = write_batch(batch, asked) if batch is not None else 0
    if as_json:
        found = PendingObject(waiting=waiting, batch=str(batch) if batch else None, entries=entries)
        print_json(found.model_dump_json(by_alias=True))
        return 0
    for each in waiting:
        typer.echo(waiting_text(each))
    if batch is not None:
        typer.echo(f"{batch}: {entries} entries of {len(asked)} runs; take it and {batch.stem}-files/ along.")
    if not waiting:
        typer.echo(f"No run in {settings.runs} waits.")
    return 0


def list_lines(runs: Path) -> list[RunLine]:
    """A line for each run under `runs`; one that cannot be read is listed as corrupt, with the reason."""
    from htam_agent.errors import RunError
    from htam_agent.runs.folder import list_runs
    from htam_agent.runs.records import Result, RunManifest

    lines = []
    for folder in list_runs(runs):
        name, steps = folder.root.name, len(folder.steps())
        try:
            manifest = folder.read("run.json", RunManifest)
            result = folder.read("result.json", Result)
            waiting = None if result else folder.read(WAITING_FILE, Waiting)
        except RunError as error:
            lines.append(RunLine(run=name, state="corrupt", steps=steps, reason=error.message))
            continue
        lines.append(
            RunLine(
                run=name,
                task=manifest.task.id if manifest else "",
                created=manifest.created if manifest else "",
                state="finished" if result else "waiting" if waiting else "unfinished",
                steps=steps,
                verdict=result.verdict if result else "",
                speedup=result.speedup.best if result else None,
                kernel=result.kernel if result else None,
                reason=waiting.text if waiting else "",
            )
        )
    return lines
