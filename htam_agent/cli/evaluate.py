"""`htam evaluate`: kernel files against a task, or a batch file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from htam_agent.cli.options import (
    BackendOption,
    CompileBaselineOption,
    JsonOption,
    LogFormatOption,
    PolicyOption,
    PrecisionOption,
    ProtocolOption,
)
from htam_agent.cli.output import print_json

if TYPE_CHECKING:
    from htam_agent.settings import Settings
    from htam_agent.words import Protocol


def evaluate_command(
    task: Annotated[str | None, typer.Argument(help="FILE, FILE:Class or pkg.mod:factory.")] = None,
    kernels: Annotated[
        list[Path] | None, typer.Argument(help="Kernel files with ModelNew; each is judged on its own.")
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(help='A file of JSON lines instead: {"task": FILE, "kernel": FILE, ...}, relative to it.'),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The batch's results (default: NAME.results.jsonl beside it); appended to.")
    ] = None,
    budget_seconds: Annotated[
        float | None, typer.Option(min=0.0, help="Wall time after which no new entry of the batch begins.")
    ] = None,
    backend: BackendOption = None,
    precision: PrecisionOption = None,
    protocol: ProtocolOption = None,
    protocols: Annotated[
        str | None, typer.Option(help="Which verdicts are wanted besides, separated by commas (default: all four).")
    ] = None,
    policy: PolicyOption = None,
    compile_baseline: CompileBaselineOption = None,
    deep: Annotated[
        bool | None, typer.Option("--deep", help="Sanitizers, other shapes and counters too, for a correct kernel.")
    ] = None,
    warm_l2: Annotated[
        bool | None, typer.Option("--warm-l2", help="On cuda: data stay in the L2 cache between timed calls.")
    ] = None,
    build_seconds: Annotated[float | None, typer.Option(help="Time limit of one build.")] = None,
    run_seconds: Annotated[float | None, typer.Option(help="Time limit of each step of judging one kernel.")] = None,
    total_seconds: Annotated[float | None, typer.Option(help="Time limit of judging one kernel in all.")] = None,
    hang_memory: Annotated[
        bool | None, typer.Option(help="Refuse at once what hung before under the same limits.")
    ] = None,
    log_format: LogFormatOption = None,
    as_json: JsonOption = False,
) -> int:
    """Judge kernel files against a task: correct on hidden inputs or not, and how fast."""
    from htam_agent.errors import UsageError
    from htam_agent.judging import parse_protocols
    from htam_agent.logging import set_up_logging
    from htam_agent.settings import Settings

    given = {
        "backend": backend, "precision": precision, "protocol": protocol, "policy": policy,
        "compile_baseline": compile_baseline, "build_seconds": build_seconds, "run_seconds": run_seconds,
        "total_seconds": total_seconds, "deep": deep, "warm_l2": warm_l2, "log_format": log_format,
        "hang_memory": hang_memory,
    }  # fmt: skip
    settings = Settings.load({name: value for name, value in given.items() if value is not None})
    set_up_logging(settings.log_level, settings.log_format)
    wanted = parse_protocols(protocols or "")
    if batch is not None:
        if task is not None:
            raise UsageError("A batch names its own tasks and kernels.", "Leave TASK and KERNEL out, or --batch.")
        from htam_agent.cli.batch import run_batch

        return run_batch(batch, settings, out, budget_seconds, wanted, as_json)
    if out is not None or budget_seconds is not None:
        raise UsageError("--out and --budget-seconds belong to a batch.", "Give --batch FILE too, or leave them out.")
    if task is None or not kernels:
        raise UsageError("A task and at least one kernel are needed.", "Give TASK KERNEL..., or --batch FILE.")
    return _judge(task, kernels, settings, wanted, as_json)


def _judge(task: str, kernels: list[Path], settings: Settings, protocols: tuple[Protocol, ...], as_json: bool) -> int:
    from htam_agent.cli.verdicts import print_evaluation
    from htam_agent.judging import evaluate_kernels
    from htam_agent.task import Task

    worst = 0
    for evaluation in evaluate_kernels(Task.parse(task), kernels, settings, protocols):
        if as_json:
            print_json(evaluation.to_json())
        else:
            print_evaluation(evaluation)
        worst = worst if evaluation.verdict == "correct" else 1
    return worst
