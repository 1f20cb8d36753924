"""What the tools need of an evaluator, and the arguments that a tool call carries."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from htam_agent.verdict import CompileResult, ProfileResult, RunResult


@runtime_checkable
class ToolBench(Protocol):
    """An evaluator bound to one task (`evaluation.bench.Bench`)."""

    def compile(self, source: Path) -> CompileResult: ...
    def run(self, compiled: CompileResult, *, timing: bool = True) -> RunResult: ...
    def profile(self, compiled: CompileResult, run: RunResult) -> ProfileResult: ...


class KernelArguments(BaseModel):
    """Arguments of a tool that is bound to a task."""

    model_config = ConfigDict(extra="forbid")

    kernel: str = Field(description="Path of the candidate's Python file, which defines ModelNew.")


class TaskArguments(KernelArguments):
    """Arguments of a tool on its own."""

    task: str = Field(description="The operator: FILE, FILE:Class or pkg.mod:factory, in KernelBench form.")
    backend: Literal["auto", "cuda", "cpp"] = Field("auto", description="Where the kernel runs; auto prefers a GPU.")


class ProfileArguments(TaskArguments):
    """Arguments of the profile tool on its own."""

    counters: bool = Field(False, description="Read hardware counters too (CUDA, where ncu may); takes seconds.")
