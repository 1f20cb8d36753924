"""The tool `profile`: where a correct candidate stands against the device's ceilings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from htam_agent.tools.base import KernelArguments, ProfileArguments
from htam_agent.tools.session import ToolSession
from htam_agent.tools.standalone import session_for
from htam_agent.tools.words import profile_words
from htam_agent.verdict import ProfileResult

if TYPE_CHECKING:
    from langchain_core.tools import StructuredTool

DESCRIPTION = (
    "Profile a correct candidate kernel: bandwidth and rate against what this device reaches, the bottleneck, "
    "registers, spills, shared memory and occupancy."
)


def bound(session: ToolSession) -> StructuredTool:
    """The tool on one bench; its artifact is a ProfileResult. A file that was not run yet is run first."""
    from langchain_core.tools import StructuredTool

    def profile_kernel(kernel: str) -> tuple[str, ProfileResult]:
        result = session.profile(kernel)
        return profile_words(result), result

    return StructuredTool.from_function(
        profile_kernel,
        name="profile",
        description=DESCRIPTION,
        args_schema=KernelArguments,
        response_format="content_and_artifact",
    )


def profile_tool() -> StructuredTool:
    """The tool on its own: it opens a bench for the task that the call names. Raises what opening it raises."""
    from langchain_core.tools import StructuredTool

    def profile_kernel(
        task: str, kernel: str, backend: str = "auto", counters: bool = False
    ) -> tuple[str, ProfileResult]:
        with session_for(task, backend, counters=counters) as session:
            result = session.profile(kernel)
            return profile_words(result), result

    return StructuredTool.from_function(
        profile_kernel,
        name="profile",
        description=DESCRIPTION,
        args_schema=ProfileArguments,
        response_format="content_and_artifact",
    )
