"""What a run waits for: the value of its interrupt, and `waiting.json` in its folder while it waits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from htam_agent.runs.records import Offered
from htam_agent.words import Backend, Policy, Precision, Protocol, Record

WaitingKind = Literal["facts", "verdicts", "direction", "code"]
WAITING_FILE = "waiting.json"


class Wanted(Record):
    """One thing that another machine is asked for: a verdict on `kernel`, or the task's facts where there is no kernel.

    Its fields are those of a batch entry, with the content's hashes, by which an answer to another question is told.
    """

    id: str
    """Unique over runs: `RUN/facts`, `RUN/0001-0-0` (step, index, attempt) or `RUN/0001-0-0/final`."""
    task: str
    """FILE, FILE:Class or pkg.mod:factory."""
    task_sha256: str
    kernel: str = ""
    """The candidate's file; empty where facts are wanted."""
    kernel_sha256: str = ""
    backend: Backend
    precision: Precision
    protocol: Protocol
    policy: Policy | None = None
    compile_baseline: bool | None = None
    deep: bool = False
    device: str = ""
    """The device of the run's facts: verdicts of another one are refused. Empty while it is not known."""


class Waiting(Record):
    """Why a run stands still, and all that is needed to answer it. `problem`: why the last answer was refused."""

    schema_: Literal["htam.waiting/1"] = Field("htam.waiting/1", alias="schema", serialization_alias="schema")
    kind: WaitingKind
    run: str
    """The run's folder."""
    task: str
    step: int = 0
    text: str
    """What is asked, for people."""
    candidates: list[Wanted] = Field(default_factory=list)
    """`facts`, `verdicts`: what to judge; `code`: what would be built and run."""
    directions: list[Offered] = Field(default_factory=list)
    """`direction`: what may be taken; the first is proposed."""
    problem: str = ""

    def to_json(self) -> str:
        """One line of JSON."""
        return self.model_dump_json(by_alias=True)
