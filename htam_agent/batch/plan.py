"""From lines to jobs: what each entry means under the settings, the key of all that decides, and the groups."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from htam_agent.batch.entries import FORM, Entry, Line, located
from htam_agent.batch.results import BatchError, BatchProblem
from htam_agent.errors import BackendUnavailable, HtamError, TaskError
from htam_agent.judging import file_sha256
from htam_agent.settings import Settings
from htam_agent.task import Task
from htam_agent.version import __version__
from htam_agent.words import Backend, Protocol

DECIDING = (
    "precision", "protocol", "policy", "compile_baseline", "build_seconds", "run_seconds", "total_seconds",
    "warm_l2", "deep", "hang_memory",
)  # fmt: skip
"""Settings under which another result may come out. The backend is one too, as `auto` chose it."""
T = TypeVar("T")
Wanted = Literal["auto", "cuda", "cpp"]
OVERRIDES = ("backend", "precision", "protocol", "policy", "deep", "compile_baseline")


@dataclass(frozen=True)
class Job:
    """One entry that can be judged."""

    line: int
    entry: Entry
    kernel: Path
    task: Task
    settings: Settings
    key: str

    @property
    def group(self) -> tuple[object, ...]:
        """Jobs with the same one share a bench."""
        return (self.task, self.entry.facts, *(getattr(self.settings, name) for name in ("backend", *DECIDING)))


class Planner:
    """Makes jobs of lines. Tasks and backends are looked at once each."""

    def __init__(
        self, folder: Path, settings: Settings, protocols: Sequence[Protocol], choose: Callable[[Wanted], Backend]
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._protocols = sorted(protocols)
        self._choose = choose
        self._tasks: dict[str, Task | HtamError] = {}
        self._backends: dict[Wanted, Backend | HtamError] = {}

    def plan(self, line: Line) -> Job | BatchError:
        """The job of a line, or the result that says why there is none."""
        if line.entry is None:
            problem = BatchProblem(
                code="batch-line", message=f"Line {line.number} is no entry: {line.problem}.", remedy=FORM
            )
            return BatchError(line=line.number, error=problem, key=_sha256([str(line.raw)]))
        entry = line.entry
        settings = self._settings.model_copy(
            update={name: getattr(entry, name) for name in OVERRIDES if getattr(entry, name) is not None}
        )
        try:
            task = self._task(entry.task)
            settings = settings.model_copy(update={"backend": self._backend(settings.backend)})
        except HtamError as error:
            return failed(line.number, entry, error, self._key(entry, None, "", settings))
        kernel = self._folder / entry.kernel
        key = self._key(entry, task, "facts" if entry.facts else file_sha256(kernel), settings)
        return Job(line=line.number, entry=entry, kernel=kernel, task=task, settings=settings, key=key)

    def _task(self, text: str) -> Task:
        found = self._tasks.get(text)
        if found is None:
            try:
                found = Task.parse(located(self._folder, text))
            except HtamError as error:
                found = error
            except OSError as error:  # a name that is too long
                found = TaskError(f"The task cannot be read: {error.strerror}.", "Check the path.", "task-missing")
            self._tasks[text] = found
        return _or_raise(found)

    def _backend(self, wanted: Wanted) -> Backend:
        found = self._backends.get(wanted)
        if found is None:
            try:
                found = self._choose(wanted)
            except HtamError as error:
                found = error
            self._backends[wanted] = found
        return _or_raise(found)

    def _key(self, entry: Entry, task: Task | None, kernel_sha256: str, settings: Settings) -> str:
        named = [entry.id, entry.task, entry.kernel]
        content = [task.digest if task else "", task.symbol if task else "", kernel_sha256]
        chosen = {name: getattr(settings, name) for name in ("backend", *DECIDING)}
        other = {name: choice for name, choice in settings.tools.given().items() if name in ("compile", "run")}
        return _sha256([__version__, named, content, chosen, self._protocols, *([other] if other else [])])


def failed(line: int, entry: Entry, error: HtamError, key: str) -> BatchError:
    """The result of an entry that an error kept from being judged."""
    return BatchError(
        id=entry.id,
        line=line,
        task=entry.task,
        kernel=entry.kernel,
        error=BatchProblem(code=error.code, message=error.message, remedy=error.remedy),
        again=error.exit_code != TaskError.exit_code or isinstance(error, BackendUnavailable),
        key=key,
    )


def _or_raise(found: T | HtamError) -> T:
    if isinstance(found, HtamError):
        raise found
    return found


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
