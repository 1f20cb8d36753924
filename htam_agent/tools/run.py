"""The tool `run`: judge a candidate on hidden inputs and time it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from htam_agent.tools.base import KernelArguments, TaskArguments
from htam_agent.tools.session import ToolSession
from htam_agent.tools.standalone import session_for
from htam_agent.tools.words import run_words
from htam_agent.verdict import RunResult

if TYPE_CHECKING:
    from langchain_core.tools import StructuredTool

DESCRIPTION = (
    "Run a candidate kernel on hidden inputs, compare it with the reference and time both. "
    "Answers with the verdict, its reason and the times."
)


def bound(session: ToolSession) -> StructuredTool:
    """The tool on one bench; its artifact is a RunResult. A file that was not built yet is built first."""
    from langchain_core.tools import StructuredTool

    def run_kernel(kernel: str) -> tuple[str, RunResult]:
        result = session.run(kernel)
        return run_words(result), result

    return StructuredTool.from_function(
        run_kernel,
        name="run",
        description=DESCRIPTION,
        args_schema=KernelArguments,
        response_format="content_and_artifact",
    )


def run_tool() -> StructuredTool:
    """The tool on its own: it opens a bench for the task that the call names. Raises what opening it raises."""
    from langchain_core.tools import StructuredTool

    def run_kernel(task: str, kernel: str, backend: str = "auto") -> tuple[str, RunResult]:
        with session_for(task, backend) as session:
            result = session.run(kernel)
            return run_words(result), result

    return StructuredTool.from_function(
        run_kernel,
        name="run",
        description=DESCRIPTION,
        args_schema=TaskArguments,
        response_format="content_and_artifact",
    )
