"""The app: registers the commands and turns every way to fail into one sentence and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from htam_agent.cli.output import INTERRUPTED, fail, fail_internal, fail_interrupted
from htam_agent.errors import HtamError, UsageError
from htam_agent.version import __version__

app = typer.Typer(
    name="htam",
    help="Make a PyTorch operator faster: proved equal on hidden inputs, measured faster, with the path it took.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"htam_agent {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Make a PyTorch operator faster."""


def _register() -> None:
    from htam_agent.cli import config, doctor, evaluate, graph, mcp, optimize, prompts, resume, runs
    from htam_agent.cli.memory import memory_app

    app.command("optimize")(optimize.optimize_command)
    app.command("evaluate")(evaluate.evaluate_command)
    app.command("resume")(resume.resume_command)
    app.add_typer(runs.runs_app, name="runs")
    app.add_typer(memory_app, name="memory")
    app.add_typer(prompts.prompts_app, name="prompts")
    app.command("graph")(graph.graph_command)
    app.command("mcp")(mcp.mcp_command)
    app.command("config")(config.config_command)
    app.command("doctor")(doctor.doctor_command)


_register()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the contract's code: 0 a correct result, 1 none, 2 bad usage or input,
    3 broken infrastructure, 130 interrupted."""
    given = sys.argv[1:] if arguments is None else arguments
    command = next((word for word in given if not word.startswith("-")), "htam")
    as_json = "--json" in given
    try:
        code = app(args=given, standalone_mode=False)
    except HtamError as error:
        fail(error, command, as_json)
    except (KeyboardInterrupt, typer.Abort):
        fail_interrupted(command, as_json)
    except BrokenPipeError:
        raise SystemExit(0) from None
    except Exception as error:  # noqa: BLE001 - the last line of defence: every way to fail gets its sentence
        # click's own exceptions share no importable base with typer's vendored copy; they do share this method.
        describe = getattr(error, "format_message", None)
        if callable(describe):
            fail(UsageError(str(describe()), f"See `htam {command} --help`."), command, as_json)
        fail_internal(error, command, as_json)
    if code == INTERRUPTED:  # typer turns a KeyboardInterrupt of a command into its exit code
        fail_interrupted(command, as_json)
    raise SystemExit(code if isinstance(code, int) else 0)
