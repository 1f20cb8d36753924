"""The JSON Schemas of everything that `htam ... --json` prints: one file each, made from the pydantic models.

`scripts/write_schemas.py` writes them; a test compares them with the models, so that a field is never changed unseen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

FOLDER = Path(__file__).parent


def models() -> dict[str, type[BaseModel]]:
    """File stem -> the model of the object."""
    from htam_agent.batch.facts import TaskFacts
    from htam_agent.batch.results import BatchError, BatchSummary
    from htam_agent.cli.config import ConfigObject
    from htam_agent.cli.graph import GraphObject
    from htam_agent.cli.output import ErrorObject
    from htam_agent.cli.prompts import PromptObject, PromptsObject
    from htam_agent.cli.resume_all import RunFailed
    from htam_agent.cli.runs import PendingObject, RunsObject
    from htam_agent.doctor import Report
    from htam_agent.judging import Evaluation
    from htam_agent.memory.merging import MergeReport
    from htam_agent.memory.pruning import PruneReport
    from htam_agent.memory.resetting import ResetReport
    from htam_agent.memory.view import (
        MemoryDrawing,
        MemoryExported,
        MemoryList,
        MemoryRemoved,
        MemoryShown,
        MemoryStats,
    )
    from htam_agent.memory.why import MemoryWhy
    from htam_agent.runs.records import Result
    from htam_agent.runs.waiting import Waiting

    return {
        "optimize": Result,
        "evaluate": Evaluation,
        "batch": BatchSummary,
        "batch-error": BatchError,
        "facts": TaskFacts,
        "waiting": Waiting,
        "error": ErrorObject,
        "runs": RunsObject,
        "pending": PendingObject,
        "resume": RunFailed,
        "graph": GraphObject,
        "config": ConfigObject,
        "doctor": Report,
        "memory-stats": MemoryStats,
        "memory-list": MemoryList,
        "memory-show": MemoryShown,
        "memory-graph": MemoryDrawing,
        "memory-why": MemoryWhy,
        "memory-export": MemoryExported,
        "memory-merge": MergeReport,
        "memory-prune": PruneReport,
        "memory-remove": MemoryRemoved,
        "memory-reset": ResetReport,
        "prompts": PromptsObject,
        "prompt": PromptObject,
    }


def schema_text(model: type[BaseModel]) -> str:
    """The schema as it is shipped: of what is printed, with sorted keys."""
    return json.dumps(model.model_json_schema(by_alias=True, mode="serialization"), indent=1, sort_keys=True) + "\n"
