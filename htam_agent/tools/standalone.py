"""A bench for one call of a tool that is used on its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

from htam_agent.backends.registry import choose_backend
from htam_agent.task import Task
from htam_agent.tools.session import ToolSession
from htam_agent.words import Backend


@contextmanager
def session_for(task: str, backend: str, *, counters: bool = False) -> Iterator[ToolSession]:
    """Open the task's bench in a temporary folder and end it with the call. `counters`: its profiles read them too.

    Raises TaskError, BackendUnavailable and WorkerError.
    """
    from htam_agent.evaluation.bench import Bench

    chosen = choose_backend(cast("Backend | Literal['auto']", backend))
    named = Task.parse(task)
    with tempfile.TemporaryDirectory(prefix="htam-tool-") as name:
        bench = Bench(named, backend=chosen.name, folder=Path(name), counters=counters)
        try:
            bench.open()
            yield ToolSession(bench)
        finally:
            bench.close()
