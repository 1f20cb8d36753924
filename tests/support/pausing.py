"""Runs that pause: a coder whose files say how they are judged, and another machine that judges by what they say."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.ablations.bench import TableBench
from benchmarks.instant_evaluator import InstantBench
from htam_agent.batch.facts import TaskFacts
from htam_agent.coding.base import Code, CodeRequest, RepairRequest
from htam_agent.coding.plan import Plan
from htam_agent.graph.context import Context
from htam_agent.graph.external import open_external
from htam_agent.judging import Evaluation, file_sha256
from htam_agent.memory.store import MemoryStore
from htam_agent.operator import OperatorProfile
from htam_agent.runs.records import RunOptions
from htam_agent.runs.waiting import Waiting, Wanted
from htam_agent.task import Task
from htam_agent.tools.registry import make_tools
from htam_agent.verdict import RunResult
from htam_agent.words import Backend
from tests.support.command import ROOT
from tests.support.table_run import POINTWISE, small_table

TASK = Task.parse(str(ROOT / "tests" / "tasks" / "row_softmax.py"))


@dataclass
class SayingCoder:
    """Writes files that say how they are judged (benchmarks/instant_evaluator.py): `says` has a list of words for each
    candidate's attempts over the whole run, by the candidate's place; the last one counts for all that follow.

    `asked` holds (step, place, repair?) in the order in which the coder was asked.
    """

    says: list[list[str]]
    name: str = "saying"
    asked: list[tuple[int, int, bool]] = field(default_factory=list)
    meeting: threading.Barrier | None = None
    """Every call waits for the others here: a coder that is asked one after the other would wait for ever."""

    def initial_plan(self, operator: OperatorProfile, backend: Backend) -> Plan | None:
        return None

    def generate(self, request: CodeRequest) -> Code:
        return self._answer(request, request.index, repair=False)

    def repair(self, request: RepairRequest) -> Code:
        """A mended file is of the candidate whose file it was, whatever its place in this round."""
        found = re.search(r"^# candidate (\d+)$", request.source, re.MULTILINE)
        assert found is not None
        return self._answer(request.request, int(found[1]), repair=True)

    def _answer(self, request: CodeRequest, index: int, repair: bool) -> Code:
        if self.meeting is not None:
            self.meeting.wait(timeout=20)
        words = self.says[min(index, len(self.says) - 1)]
        said = words[min(sum(place == index for _, place, _ in self.asked), len(words) - 1)]
        self.asked.append((request.step, index, repair))
        source = SOURCE.format(index=index, number=len(self.asked), said=said)
        return Code(source=source, strategy=request.strategies[0].strategy.id, prompt_tokens=10, completion_tokens=5)


SOURCE = """# candidate {index}
# number {number}
# instant: {said}
import torch

CPP_SRC = ""


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.empty_like(x)
"""
"""Enough for a look at its text."""


def options_of(**changes: object) -> RunOptions:
    return RunOptions.model_validate({"backend": "cpp", "coder": "model", "steps": 1, "seed": 1, **changes})


@contextmanager
def context_of(folder: Path, coder: SayingCoder, options: RunOptions, **more: object) -> Iterator[Context]:
    """A context whose runs lie in `folder`/runs; nothing is built or timed."""
    external = options.evaluator == "external"
    with closing(MemoryStore.open(folder / "memory")) as memory:
        yield Context(
            options=options,
            memory=memory,
            coder=coder,
            open_bench=open_external if external else InstantBench,
            make_tools=make_tools,
            runs=folder / "runs",
            **more,  # type: ignore[arg-type]
        )


def answers(waiting: Waiting | dict[str, object], **changes: object) -> list[dict[str, object]]:
    """What another machine says, as the lines of its results file; `changes` are put into each line."""
    asked = waiting if isinstance(waiting, Waiting) else Waiting.model_validate(waiting)
    return [{**json.loads(_answer(wanted).model_dump_json(by_alias=True)), **changes} for wanted in asked.candidates]


def _answer(wanted: Wanted) -> Evaluation | TaskFacts:
    task = Task.parse(wanted.task)
    bench = InstantBench(task, options_of(backend=wanted.backend), Path())
    common = {
        "id": wanted.id, "task": task.id, "task_sha256": task.digest, "backend": wanted.backend,
        "precision": wanted.precision, "protocol": wanted.protocol, "key": "k",
    }  # fmt: skip
    if not wanted.kernel:
        operator = TableBench(small_table(), POINTWISE).operator  # a traced one, which the template coder can render
        facts = {"device": bench.device, "ceilings": bench.ceilings, "operator": operator}
        return TaskFacts.model_validate({**common, **facts, "policy": bench.policy, "baselines": bench.baselines()})
    kernel = Path(wanted.kernel)
    built = bench.compile(kernel)
    result = bench.run(built) if built.ok else RunResult(verdict="failed", stage="compile", reason="does not build")
    head = {"kernel": str(kernel), "kernel_sha256": file_sha256(kernel), "device": bench.device.name}
    return Evaluation.model_validate({**result.model_dump(), **common, **head, "policy": wanted.policy})


def spoken(kernel: Path) -> str:
    """How a file says that it is judged."""
    found = re.search(r"^# instant: (\S+)$", kernel.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]
