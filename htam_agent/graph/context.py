"""The run-time context: clients and processes. Never checkpointed; a resumed run gets a new one."""

from __future__ import annotations

import hashlib
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from htam_agent.runs.cap import keep_under_cap
from htam_agent.runs.folder import RunFolder, new_run_folder, run_exists
from htam_agent.runs.records import RunManifest, RunOptions, RunSettings
from htam_agent.verdict import Times

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from langchain_core.tools import BaseTool
    from langgraph.runtime import Runtime

    from htam_agent.coding.base import Coder
    from htam_agent.coding.chat import Chat
    from htam_agent.coding.ledger import Ledger
    from htam_agent.coding.opening import Preflight
    from htam_agent.coding.prices import PriceTable
    from htam_agent.graph.directing import Director
    from htam_agent.memory.store import MemoryStore
    from htam_agent.operator import OperatorFeatures, OperatorProfile
    from htam_agent.task import Task
    from htam_agent.verdict import Ceilings, CompileResult, DeviceFacts, RunResult
    from htam_agent.words import Policy


class BenchLike(Protocol):
    """What the graph needs of an evaluator bound to one task (evaluation/bench.py)."""

    operator: OperatorProfile
    device: DeviceFacts
    ceilings: Ceilings
    policy: Policy

    def open(self) -> OperatorProfile: ...
    def baselines(self) -> Times: ...
    def use_baselines(self, times: Times) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class DeepBench(Protocol):
    """An evaluator that has deep checks too: sanitizers, other shapes, counters."""

    def deep(self, compiled: CompileResult, result: RunResult) -> RunResult: ...


class BenchFactory(Protocol):
    """Opens the evaluator of one task; swapped by settings."""

    def __call__(self, task: Task, options: RunOptions, folder: Path) -> BenchLike: ...


class ToolFactory(Protocol):
    """The three tools compile, run and profile, bound to a bench."""

    def __call__(self, bench: BenchLike) -> Mapping[str, BaseTool]: ...


@dataclass
class Session:
    """One run under way in this process: its folder, its evaluator, its tools."""

    folder: RunFolder
    bench: BenchLike
    tools: Mapping[str, BaseTool]
    operator: OperatorProfile
    features: OperatorFeatures
    baselines: Times
    ledger: Ledger
    """What the run has spent on models."""
    seed: int
    """Of selection, as the run began with it: a context that is made for a resume may have drawn another one."""


@dataclass
class Context:
    """Everything that nodes reach for. One context may serve several runs at once (each has its own session)."""

    options: RunOptions
    memory: MemoryStore
    coder: Coder
    open_bench: BenchFactory
    make_tools: ToolFactory
    runs: Path
    runs_cap_bytes: int | None = None
    """Beyond it the oldest finished runs under `runs` lose attempts and checkpoints when a run begins; None: no cap."""
    folder: Path | None = None
    """The folder of the one run of this context; None: each run makes its own under `runs`."""
    chat: Chat | None = None
    """Asks the chat models; None in a run that needs none."""
    prices: PriceTable | None = None
    """What models cost; None: nothing is known."""
    preflights: list[Preflight] = field(default_factory=list)
    """What was asked before any work; the first run pays for it."""
    settings: RunSettings | None = None
    """What each new run stores of where the above came from."""
    director: Director | None = None
    """Chooses each step's direction; None: the best score does."""
    sessions: dict[str, Session] = field(default_factory=dict)
    opening: dict[str, threading.Lock] = field(default_factory=dict)
    """One for each run: nodes that run side by side open one session between them."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start_run(self, task: Task) -> RunFolder:
        """The folder of a run that begins, with its manifest.

        Raises RunError when the folder holds a run already or cannot be written.
        """
        return self._start_in(self.folder or new_run_folder(self.runs, task.name), task)

    def _start_in(self, root: Path, task: Task) -> RunFolder:
        folder = RunFolder.create(root)
        folder.write("run.json", RunManifest.begin(task.kept_in(folder.root), self.options, self.settings))
        if self.runs_cap_bytes is not None:
            keep_under_cap(self.runs, self.runs_cap_bytes)
        return folder

    def take_up_run(self, task: Task, place: str = "") -> RunFolder:
        """The folder of the run that prepare is in: the one that holds this very run (begun by optimize, or before a
        crash or a pause), else a new one.

        `place` is the node's place in the graphs that run it, which stays the same when it runs again; by it a run
        finds its folder where the context has none.

        Raises RunError when the context's folder holds another run, or cannot be written.
        """
        folder = self.folder or self._folder_at(task, place)
        if not (folder / "run.json").exists():
            return self._start_in(folder, task)
        begun = RunFolder(folder)
        if not begun.manifest().is_of(task, self.options):
            raise run_exists(folder)
        return begun

    def _folder_at(self, task: Task, place: str) -> Path:
        """The folder under `runs` of the run at this place, begun or new."""
        if not place:
            return new_run_folder(self.runs, task.name)
        token = hashlib.sha256(place.encode()).hexdigest()[:12]
        begun = sorted(self.runs.glob(f"*-{token}"))
        return begun[0] if begun else new_run_folder(self.runs, task.name, token)

    def session(self, task: Task, run: str) -> Session:
        """The session of this run, opened on first use (again after a resume).

        Raises TaskError when the task cannot be loaded, BackendUnavailable, and WorkerError.
        """
        with self._opening(run):
            with self.lock:
                found = self.sessions.get(run)
            if found is not None:
                return found
            session = self._open(task, RunFolder(Path(run)))
            with self.lock:
                self.sessions[run] = session
            return session

    @contextmanager
    def _opening(self, run: str) -> Iterator[None]:
        """Inside, nobody else opens a session of this run."""
        while True:
            with self.lock:
                mine = self.opening.setdefault(run, threading.Lock())
            with mine:
                with self.lock:
                    # The run may have been closed, and its lock dropped, while this one was waited for.
                    current = self.opening.get(run) is mine
                if current:
                    yield
                    return

    def _open(self, task: Task, folder: RunFolder) -> Session:
        from htam_agent.tracing import features_of

        self.memory.refresh()  # a context may live for long: what others have learned since is seen by the next run
        bench = self.open_bench(task, self.options, folder.scratch())
        try:
            operator = bench.open()
            folder.write("operator.json", operator)
            baselines = folder.read("baselines.json", Times)
            if baselines is None:
                baselines = bench.baselines()
                folder.write("baselines.json", baselines)
            else:
                bench.use_baselines(baselines)
            return Session(
                folder=folder,
                bench=bench,
                tools=self.make_tools(bench),
                operator=operator,
                features=features_of(operator),
                baselines=baselines,
                ledger=self._open_ledger(folder),
                seed=folder.manifest().options.seed,
            )
        except BaseException:
            bench.close()
            raise

    def _open_ledger(self, folder: RunFolder) -> Ledger:
        """The run's books, with what was asked before any work."""
        from htam_agent.coding.ledger import Budget, Ledger

        budget = Budget(usd=self.options.max_cost, tokens=self.options.max_tokens)
        ledger = Ledger(folder.path("calls.jsonl"), self.prices, budget)
        with suppress(IndexError):  # contexts of single runs share the list, and each entry is taken once
            while True:
                preflight = self.preflights.pop()
                ledger.add(preflight.choice, 0, preflight.answer)
        return ledger

    def close_session(self, run: str) -> None:
        """End the processes of one run."""
        with self.lock:
            session = self.sessions.pop(run, None)
            opening = self.opening.get(run)
            if opening is not None and not opening.locked():  # who opens a session this moment still needs it
                del self.opening[run]
        if session is not None:
            session.bench.close()

    @contextmanager
    def ended_on_failure(self, run: str) -> Iterator[None]:
        """Ends the processes of the run when what is done inside raises."""
        try:
            yield
        except BaseException:
            self.close_session(run)
            raise

    def for_one_run(self) -> Context:
        """A context with the same clients and no sessions: who makes it ends its own processes and no others."""
        return replace(self, sessions={}, opening={}, lock=threading.Lock())

    def close_sessions(self) -> None:
        """End the processes of every run of this context."""
        for run in list(self.sessions):
            self.close_session(run)

    def close(self) -> None:
        """End the processes of every run, and the store."""
        self.close_sessions()
        self.memory.close()


_default: list[Context] = []
_default_lock = threading.Lock()


def context_of(runtime: Runtime[Context]) -> Context:
    """The run's context. A server that passes none (or an empty object) gets one made from this process's settings,
    once."""
    context: object = runtime.context
    if isinstance(context, Context):
        return context
    with _default_lock:
        if not _default:
            from htam_agent.graph.embedding import default_context

            _default.append(default_context())
        return _default[0]
