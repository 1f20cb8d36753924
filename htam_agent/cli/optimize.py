"""`htam optimize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from htam_agent.cli.options import (
    BackendOption,
    CompileBaselineOption,
    JsonOption,
    LogFormatOption,
    MaxCostOption,
    MaxSecondsOption,
    MaxTokensOption,
    MemoryOption,
    PolicyOption,
    PrecisionOption,
    PreflightOption,
    PricesOption,
    ProtocolOption,
)

if TYPE_CHECKING:
    from langgraph.runtime import RunControl

    from htam_agent.cli.progress import Listener
    from htam_agent.runs.records import Result


def optimize_command(
    task: Annotated[str, typer.Argument(help="FILE, FILE:Class or pkg.mod:factory.")],
    backend: BackendOption = None,
    coder: Annotated[str | None, typer.Option(help="template (no model needed) or model.")] = None,
    steps: Annotated[int | None, typer.Option(help="Evolution steps at most.")] = None,
    precision: PrecisionOption = None,
    protocol: ProtocolOption = None,
    policy: PolicyOption = None,
    memory_mode: Annotated[
        str | None, typer.Option(help="full, or an ablation: no-hierarchy, no-local, random, no-prefix, ..., none.")
    ] = None,
    candidates: Annotated[int | None, typer.Option(help="Candidates written in each step, side by side.")] = None,
    director: Annotated[str | None, typer.Option(help="Who chooses directions: score, or model.")] = None,
    evaluator: Annotated[
        str | None, typer.Option(help="local, or external: the run waits for another machine's verdicts.")
    ] = None,
    approve: Annotated[
        str | None, typer.Option(help="Wait for your yes: before each direction, before code runs (direction,code).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of selection; the evaluator's seeds stay secret.")] = None,
    memory: MemoryOption = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder (default: a new one under the runs folder).")
    ] = None,
    max_seconds: MaxSecondsOption = None,
    max_cost: MaxCostOption = None,
    max_tokens: MaxTokensOption = None,
    prices: PricesOption = None,
    record: Annotated[Path | None, typer.Option(help="Keep every exchange with a model in this folder.")] = None,
    replay: Annotated[Path | None, typer.Option(help="Give a recorded run's answers again; nothing is sent.")] = None,
    preflight: PreflightOption = None,
    strategies: Annotated[list[Path] | None, typer.Option(help="Your own strategies: YAML files or folders.")] = None,
    compile_baseline: CompileBaselineOption = None,
    require_faster: Annotated[bool, typer.Option("--require-faster", help="Exit 1 unless faster.")] = False,
    faster_than: Annotated[str, typer.Option(help="What --require-faster compares with: best or eager.")] = "best",
    log_format: LogFormatOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make the operator in TASK faster and write the kernel, the path and the report into the run's folder."""
    from htam_agent.cli.progress import run_with_progress
    from htam_agent.errors import SettingsError
    from htam_agent.settings import Settings
    from htam_agent.task import Task

    if faster_than not in ("best", "eager"):
        raise SettingsError(f"--faster-than is {faster_than!r}.", "Give best or eager.")
    given = {
        "backend": backend, "coder": coder, "steps": steps, "precision": precision, "protocol": protocol,
        "policy": policy, "memory_mode": memory_mode, "candidates": candidates, "seed": seed, "memory": memory,
        "out": out, "max_seconds": max_seconds, "strategies": strategies or None,
        "compile_baseline": compile_baseline, "log_format": log_format, "director": director, "evaluator": evaluator,
        "approve": approve, "max_cost": max_cost, "max_tokens": max_tokens, "prices": prices, "record": record,
        "replay": replay, "preflight": preflight,
    }  # fmt: skip
    settings = Settings.load({name: value for name, value in given.items() if value is not None})
    parsed = Task.parse(task)

    def work(listen: Listener, control: RunControl) -> Result:
        from htam_agent.api import optimize

        return optimize(parsed, listen=listen, control=control, settings=settings)

    result = run_with_progress(work, settings, as_json)
    return exit_code(result, require_faster, faster_than)


def exit_code(result: Result, require_faster: bool, faster_than: str) -> int:
    """0 for a correct kernel or an original at the floor, else 1; with `require_faster` also 1 when not faster."""
    if result.verdict not in ("correct", "at-floor"):
        return 1
    if not require_faster:
        return 0
    if faster_than == "best":
        return 0 if result.faster else 1
    return 0 if faster_than_eager(result) else 1


def faster_than_eager(result: Result) -> bool:
    """Whether the whole interval of the ratio lies above 1 against eager: the interval was measured against `best`, so
    it is scaled by the ratio of the two baselines."""
    eager, best, interval = result.speedup.eager, result.speedup.best, result.interval
    if eager is None or best is None or interval is None:
        return False
    return interval.low * eager / best > 1.0
