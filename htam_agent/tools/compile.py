"""The tool `compile`: build a candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from htam_agent.tools.base import KernelArguments, TaskArguments
from htam_agent.tools.session import ToolSession
from htam_agent.tools.standalone import session_for
from htam_agent.tools.words import compile_words
from htam_agent.verdict import CompileResult

if TYPE_CHECKING:
    from langchain_core.tools import StructuredTool

DESCRIPTION = "Build a candidate kernel. Answers whether it builds, and if not with the compiler's first errors."


def bound(session: ToolSession) -> StructuredTool:
    """The tool on one bench; its artifact is a CompileResult."""
    from langchain_core.tools import StructuredTool

    def compile_kernel(kernel: str) -> tuple[str, CompileResult]:
        result = session.compile(kernel)
        return compile_words(result), result

    return StructuredTool.from_function(
        compile_kernel,
        name="compile",
        description=DESCRIPTION,
        args_schema=KernelArguments,
        response_format="content_and_artifact",
    )


def compile_tool() -> StructuredTool:
    """The tool on its own: it opens a bench for the task that the call names. Raises what opening it raises."""
    from langchain_core.tools import StructuredTool

    def compile_kernel(task: str, kernel: str, backend: str = "auto") -> tuple[str, CompileResult]:
        with session_for(task, backend) as session:
            result = session.compile(kernel)
            # The build lay in a folder that is gone with the bench.
            return compile_words(result), result.model_copy(update={"binary": "", "folder": ""})

    return StructuredTool.from_function(
        compile_kernel,
        name="compile",
        description=DESCRIPTION,
        args_schema=TaskArguments,
        response_format="content_and_artifact",
    )
