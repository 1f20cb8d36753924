"""The library's entry points. htam_agent/__init__.py names them lazily, so that importing the package is cheap."""

from __future__ import annotations

import asyncio
import functools
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, overload

from htam_agent.errors import RunError, UsageError
from htam_agent.runs.folder import find_run, new_run_folder
from htam_agent.runs.holding import held
from htam_agent.runs.limits import limited_anew, may_go_on
from htam_agent.runs.records import Result, RunManifest, RunSettings
from htam_agent.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from langgraph.runtime import RunControl

    from htam_agent.batch.facts import TaskFacts
    from htam_agent.batch.results import BatchError
    from htam_agent.graph.context import Context
    from htam_agent.graph.events import Event
    from htam_agent.judging import Evaluation
    from htam_agent.runs.folder import RunFolder
    from htam_agent.settings import Settings


def _ignore(event: Event) -> None:
    """Nobody listens."""


def optimize(
    task: Task | str,
    *,
    listen: Callable[[Event], None] | None = None,
    control: RunControl | None = None,
    settings: Settings | None = None,
    **overrides: object,
) -> Result:
    """Make an operator faster: run the whole graph on `task` and return its Result.

    `overrides` are settings by name (backend="cpp", steps=3, memory="folder", out="folder", ...); they win over
    htam.toml, .env and the environment. `listen` is called with every progress event.

    Raises UsageError (TaskError, SettingsError, BackendUnavailable, StoreError, RunError) for what the caller can
    mend, InfrastructureError for what broke, Interrupted where `control` stopped it, Paused where it waits for an
    approval or for verdicts (`resume` goes on). A candidate's failure raises nothing: it is in the Result.
    """
    from htam_agent.graph.runner import run_graph
    from htam_agent.services import make_context, run_options

    task = Task.parse(task) if isinstance(task, str) else task
    settings = settings or _settings(overrides)
    options = run_options(settings)
    out = Path(settings.out) if settings.out else new_run_folder(Path(settings.runs), task.name)
    context = make_context(settings, options, out)
    try:
        folder = context.start_run(task)
        with held(folder), _naming(folder):
            return run_graph(context, folder.manifest().task, folder, listen or _ignore, control)
    finally:
        context.close()


def resume(
    run: str,
    *,
    listen: Callable[[Event], None] | None = None,
    control: RunControl | None = None,
    settings: Settings | None = None,
    verdicts: str | Path | Sequence[object] | None = None,
    approve: str | None = None,
    **overrides: object,
) -> Result:
    """Go on with a run that was killed or interrupted, under the options that it was started with; a finished run's
    result is returned as it is. A run that its budget, its time or its model's endpoint stopped goes on where there is
    a new limit (max_cost, max_tokens, max_seconds), or the endpoint may be back. `run` is a folder, a name under the
    runs folder, or "last". Memory, strategies, prompts, model and addresses are those of the run unless `overrides` or
    the environment give others.

    What a run waits for is given with it: `verdicts` (a results file of `htam evaluate --batch`, or its lines), or
    `approve` (yes, no, or the direction that is to be taken).

    Raises RunError when there is no such run, it is corrupt, another process drives it, its task file changed
    meanwhile, or what is given is not what it waits for (the run is then as before); TaskError when its pickled module
    did; Paused where it waits again.
    """
    from htam_agent.runs.answering import take_answers

    settings = settings or _settings(overrides)
    folder = find_run(Path(settings.runs), run)
    ended = _ended(folder, settings)
    if ended is not None:
        return ended
    with held(folder):
        # Another process may have brought it to its end before the lock was ours.
        ended = _ended(folder, settings)
        if ended is not None:
            return ended
        _check_resumable(folder.manifest())
        take_answers(folder, verdicts, approve)
        return _gone_on(folder, settings, listen or _ignore, control, approve)


def _ended(folder: RunFolder, settings: Settings) -> Result | None:
    """The result of a run that does not go on."""
    finished, before = folder.read("result.json", Result), folder.manifest().options
    if finished is None or may_go_on(finished, before, limited_anew(before, settings)):
        return None
    return finished


def _check_resumable(manifest: RunManifest) -> None:
    """Raises UsageError where the task is another one now, or the run's backend does not work here."""
    from htam_agent.backends.registry import require_backend

    _unchanged(manifest.task)
    if manifest.options.evaluator == "local":
        require_backend(manifest.options.backend)


def _gone_on(
    folder: RunFolder,
    settings: Settings,
    listen: Callable[[Event], None],
    control: RunControl | None,
    answer: str | None,
) -> Result:
    """The run's result after it went on, under the limits that are given now."""
    from htam_agent.graph.runner import is_ending, reopen_run, run_graph
    from htam_agent.services import make_context

    manifest = folder.manifest()
    options = limited_anew(manifest.options, settings)
    context = make_context(_as_before(settings, manifest, listen), options, folder.root)
    try:
        # New limits are stored when the run goes on under them: beside a result of the old ones they would look as if
        # they had been spent.
        if folder.path("result.json").exists():
            reopen_run(folder)
        if not is_ending(folder):
            folder.write("run.json", manifest.model_copy(update={"options": options}))
        with _naming(folder):
            return run_graph(context, manifest.task, folder, listen, control, answer)
    finally:
        context.close()


@contextmanager
def _naming(folder: RunFolder) -> Iterator[None]:
    """A Ctrl-C inside leaves with the run's folder as its argument, so that a command can say how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(str(folder.root)) from error


def _as_before(settings: Settings, manifest: RunManifest, listen: Callable[[Event], None]) -> Settings:
    """The settings that the run began under, with what is given now; each difference is told to the listener."""
    if manifest.settings is None:
        return settings
    stored = manifest.settings.values()
    merged = settings.over(stored)
    now = RunSettings.of(merged).values()
    for name, before in stored.items():
        if now.get(name) != before:
            text = f"{name} is {now.get(name, 'another')} as given now; the run began with {before}"
            listen({"kind": "resumed", "text": text, "time": time.time()})
    return merged


def _unchanged(task: Task) -> None:
    """A run's steps are about one operator: going on with another would mix two."""
    path = Path(task.path)
    if not path.is_file():
        raise RunError(f"The task file {task.path!r} of this run is gone.", "Put it back, then resume.", "run-task")
    if task.kind == "module":
        task.checked_bytes()
        return
    spelled = task.path if task.kind == "file" else task.symbol
    now = Task.parse(f"{spelled}:{task.symbol}" if task.kind == "file" else spelled)
    if now.digest != task.digest:
        raise RunError(
            f"The task file {task.path!r} changed since the run began.",
            "Put the old content back to resume, or start a new run.",
            "run-task",
        )


async def aoptimize(task: Task | str, *, listen: Callable[[Event], None] | None = None, **overrides: object) -> Result:
    """`optimize` without blocking the event loop: it runs in a thread of its own. Cancelling the awaiting task stops
    the run at its next node boundary; it can be resumed."""
    from langgraph.runtime import RunControl

    control = RunControl()
    work = functools.partial(optimize, task, listen=listen, control=control, settings=_settings(overrides))
    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        control.request_drain("cancelled")
        raise


@overload
def evaluate(
    task: Task | str,
    kernels: str | Path | Iterable[str | Path],
    *,
    batch: None = None,
    out: None = None,
    budget_seconds: None = None,
    **overrides: object,
) -> Iterator[Evaluation]: ...


@overload
def evaluate(
    task: None = None,
    kernels: Iterable[str | Path] = (),
    *,
    batch: str | Path,
    out: str | Path | None = None,
    budget_seconds: float | None = None,
    **overrides: object,
) -> Iterator[Evaluation | TaskFacts | BatchError]: ...


def evaluate(
    task: Task | str | None = None,
    kernels: str | Path | Iterable[str | Path] = (),
    *,
    batch: str | Path | None = None,
    out: str | Path | None = None,
    budget_seconds: float | None = None,
    **overrides: object,
) -> Iterator[Evaluation | TaskFacts | BatchError]:
    """Judge kernel files (or one) against a task, each in a process of its own; yields one Evaluation for each, in
    order, as they are judged; `to_json()` gives the contract's object.

    With `batch`, a file of JSON lines {"task": ..., "kernel": ...}, in place of `task` and `kernels`: yields what this
    run adds to the results file `out` (default: `<name>.results.jsonl` beside the batch), grouped by task; entries with
    a result there are passed over. After `budget_seconds` no further entry begins. A line that cannot be judged is a
    BatchError. Close the iterator to end early.

    Raises UsageError when the task, a setting or the batch file is at fault. A kernel's faults are in its Evaluation.
    """
    settings = _settings(overrides)
    if batch is not None:
        if task is not None:
            raise UsageError("A batch names its own tasks and kernels.", "Give a batch, or a task and kernels.")
        return _evaluate_batch(Path(batch), settings, Path(out) if out else None, budget_seconds)
    if task is None:
        raise UsageError("Nothing to evaluate was given.", "Give a task and kernels, or a batch.")
    from htam_agent.judging import evaluate_kernels

    task = Task.parse(task) if isinstance(task, str) else task
    given = [kernels] if isinstance(kernels, str | Path) else kernels
    return evaluate_kernels(task, (Path(kernel) for kernel in given), settings)


def _evaluate_batch(
    file: Path, settings: Settings, out: Path | None, budget_seconds: float | None
) -> Iterator[Evaluation | TaskFacts | BatchError]:
    from htam_agent.batch.running import Batch

    with Batch(file, settings, out=out, budget_seconds=budget_seconds) as opened:
        yield from opened.run()


def as_node(context: Context | None = None) -> Callable[[Mapping[str, Task | str]], dict[str, Result]]:
    """The whole agent as one node of another graph: it reads `task` from the parent's state and returns `result`.

    The inner graph has no checkpointer of its own. Without `context` one is made from the settings for each call.
    """
    from htam_agent.graph.embedding import agent_node

    return agent_node(context)


def _settings(overrides: Mapping[str, object]) -> Settings:
    from htam_agent.settings import Settings

    return Settings.load({name: value for name, value in overrides.items() if value is not None}, given="call")
