"""What a replacement of each seam is asked and answers. Coder and Embedder have theirs beside their own parts.

A method may be a coroutine: it is then awaited in the background (background.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from htam_agent.operator import OperatorProfile
from htam_agent.runs.records import RunOptions
from htam_agent.task import Task
from htam_agent.verdict import Ceilings, CompileResult, DeviceFacts, ProfileResult, RunResult, Times
from htam_agent.words import Backend, Policy, Precision, Record
from htam_agent.words import Protocol as ProtocolName


class BuildRequest(Record):
    """One kernel source to compile, after its file was checked against the policy."""

    source: str
    """CUDA or C++ text."""
    backend: Backend
    target: str
    """ "sm_90" and the like, or "cpp" for this machine's processor."""
    folder: Path
    """The build's own folder; nothing else may be written."""
    output: Path
    """Where the cubin or shared library is to lie; the result's own `binary` and `folder` are not looked at."""
    seconds: float
    """Time limit. A build that takes longer is killed."""


class RunRequest(Record):
    """One built candidate to be judged and timed."""

    task: str
    """FILE:Class or pkg.mod:factory."""
    kernel: Path
    backend: Backend
    precision: Precision
    protocol: ProtocolName
    policy: Policy
    compiled: CompileResult
    baselines: Times | None = None
    """Times of the reference as this machine measured them, in milliseconds; None when no times are wanted."""


class ProfileRequest(Record):
    """One correct candidate to be placed against its device."""

    task: str
    """FILE:Class or pkg.mod:factory."""
    kernel: Path
    backend: Backend
    precision: Precision
    operator: OperatorProfile
    device: DeviceFacts
    ceilings: Ceilings
    compiled: CompileResult
    run: RunResult


class Compiler(Protocol):
    """Builds kernel sources. It is imported in the main process, to be checked, and in the confined build process,
    where it works: no network, no file but its own package, the system's and its folder. With an MCP server the build
    happens in that server instead."""

    @property
    def version(self) -> str:
        """Part of the cache's key: two builds of one source under equal versions are the same."""
        ...

    def build(self, request: BuildRequest) -> CompileResult:
        """A source that does not compile is a result with `ok` false and the compiler's words, never an exception."""
        ...


class Runner(Protocol):
    """Judges and times candidates: the verdict is its own."""

    def run(self, request: RunRequest) -> RunResult:
        """Every failure of the candidate is a verdict; an exception means that the judge is broken."""
        ...


class Profiler(Protocol):
    """Says what bounds a correct kernel."""

    def profile(self, request: ProfileRequest) -> ProfileResult:
        """`bottleneck` steers the choice of directions, `diagnosis` is shown to a model."""
        ...


class Evaluator(Protocol):
    """A whole evaluator of one task: graph.context.BenchLike, and the three tools' work (tools.base.ToolBench)."""

    operator: OperatorProfile
    device: DeviceFacts
    ceilings: Ceilings
    policy: Policy

    def open(self) -> OperatorProfile: ...
    def baselines(self) -> Times: ...
    def use_baselines(self, times: Times) -> None: ...
    def close(self) -> None: ...
    def compile(self, source: Path) -> CompileResult: ...
    def run(self, compiled: CompileResult, *, timing: bool = True) -> RunResult: ...
    def profile(self, compiled: CompileResult, run: RunResult) -> ProfileResult: ...


class EvaluatorFactory(Protocol):
    """Makes the evaluator of one task: a class whose constructor takes these, or a function."""

    def __call__(self, task: Task, options: RunOptions, folder: Path) -> Evaluator: ...
