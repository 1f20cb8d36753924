"""SQLite checkpoints in the run's folder."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from htam_agent.coding.usage import ModelUse
from htam_agent.errors import RunError
from htam_agent.graph.state import Best, Candidate, Draft, Halt, Past
from htam_agent.operator import TensorInfo
from htam_agent.runs.records import CandidateSummary, Cost, Directed, Result, StepRecord
from htam_agent.task import Task
from htam_agent.verdict import Failure, Interval, ProfileResult, Speedups, Times

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHECKPOINTS = "checkpoints.sqlite"
"""The file in the run's folder."""
STATE_TYPES = (
    Task, Result, Draft, Candidate, Best, Past, Failure, Speedups, Interval, Times, StepRecord, CandidateSummary, Cost,
    ProfileResult, TensorInfo, Directed, Halt, ModelUse,
)  # fmt: skip
"""Every record that may lie in a checkpoint: nothing else is brought back to life from the file."""


@contextmanager
def open_checkpoints(path: Path) -> Iterator[SqliteSaver]:
    """The checkpoint store at `path`, made if it is not there.

    Raises RunError when the file is not a SQLite database or cannot be written.
    """
    allowed = [(kind.__module__, kind.__name__) for kind in STATE_TYPES]
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        saver = SqliteSaver(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=allowed))
        saver.setup()
        yield saver
    except sqlite3.DatabaseError as error:
        raise _unreadable(path, error) from error
    finally:
        connection.close()


def _unreadable(path: Path, error: sqlite3.DatabaseError) -> RunError:
    steps = path.parent / "steps"
    return RunError(
        f"The checkpoint file {str(path)!r} cannot be used: {error}.",
        f"The finished steps are kept in {str(steps)!r} and the kernels beside them; start a new run for more "
        "(what was learned is in the memory).",
        "checkpoint-corrupt",
    )
