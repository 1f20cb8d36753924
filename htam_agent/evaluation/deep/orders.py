"""What the runner of a deep check is told, and what it answers: JSON files in its folder."""

from __future__ import annotations

from pydantic import Field

from htam_agent.evaluation.channel import Letter
from htam_agent.evaluation.confinement import Cell
from htam_agent.evaluation.deep.records import ShapeCase
from htam_agent.evaluation.messages import Blueprint
from htam_agent.evaluation.trees import TensorSpec, Tree

ORDER, ANSWERS = "order.json", "answers.jsonl"
INIT, STATE = "init.bin", "state.bin"
READY = "the runner is set up"
"""Label of an outcome that comes before a byte of the candidate has run."""


class RunnerOrder(Letter):
    """Make the model of `file`, load its state, call it once with each case.

    `cell`: layers to put on in the process itself, for a runner that a tool started (None: it is confined already).
    `data`: the folder of the files with values. `repeat`: calls of each case. `keep`: write the outputs into files.
    """

    file: str
    data: str
    blueprint: Blueprint
    init: list[TensorSpec] = Field(default_factory=list)
    state: list[TensorSpec] = Field(default_factory=list)
    cases: list[ShapeCase]
    cell: Cell | None = None
    device_first: bool = False
    """Start CUDA before the layers of `cell`: for a tool whose part in this process connects when CUDA starts."""
    repeat: int = 1
    keep: bool = True


class Outcome(Letter):
    """What a case gave, as the hostile process tells it: evidence. `reason` where `ok` is false; `broken`: the device
    is of no use to this process any more."""

    label: str
    ok: bool
    reason: str = ""
    broken: bool = False
    outputs: Tree | None = None
    tensors: list[TensorSpec] = Field(default_factory=list)
    file: str = ""


class SupervisorOrder(Letter):
    """Run `command` confined by `cell` for at most `seconds`, its output into `log`."""

    command: list[str]
    cell: Cell
    seconds: float
    log: str


class Ended(Letter):
    """How a confined command ended. `status` as os.waitpid gives it."""

    status: int
    timed_out: bool = False
    left_behind: int = 0
    active: list[str] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)
