"""A bench for one call of a tool that is used on its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from htam_agent.task import Task
from htam_agent.tools.base import ToolBench
from htam_agent.tools.session import ToolSession


@contextmanager
def session_for(task: str, backend: str, *, counters: bool = False) -> Iterator[ToolSession]:
    """Open the task's bench, as the settings have it, in a temporary folder and end it with the call. `counters`: its
    profiles read them too.

    Raises TaskError, SettingsError, BackendUnavailable and WorkerError.
    """
    from htam_agent.services import bench_factory, run_options
    from htam_agent.settings import Settings
    from htam_agent.swapping.chosen import choose

    settings = Settings.load({"backend": backend, **({"profile": "ncu"} if counters else {})}, given="call")
    options = run_options(settings)
    named = Task.parse(task)
    chosen = choose(settings, options.backend, ("compile", "run", "profile", "evaluator"))
    with tempfile.TemporaryDirectory(prefix="htam-tool-") as name:
        bench = bench_factory(chosen)(named, options, Path(name))
        assert isinstance(bench, ToolBench), "every evaluator is checked for these methods when it is made"
        try:
            bench.open()
            yield ToolSession(bench)
        finally:
            bench.close()
