"""The table's form, and the function that runs it: every cheat must be refused, every honest twin be correct.

`cases(backend)` gives the rows; `run_table(backend, folder)` judges them with real benches and yields one `Row` each,
for the tests here and for the benchmark that reports the GPU's figures. L1 (a model writes its own weak test) and L2 (a
model reports its own speedup) are rules of the product's process, with nothing that a file could do: they are exempt.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.task import Task
from htam_agent.verdict import RunResult
from htam_agent.words import Backend, Stage, Verdict
from tests.cheats.tasks import TASKS

IDS = (
    *(f"T{number}" for number in range(1, 13)),
    *(f"S{number}" for number in range(1, 17)),
    *(f"F{number}" for number in range(1, 6)),
    *(f"H{number}" for number in range(1, 7)),
    "L3",
)
EXEMPT = {"L1": "tests belong to the product, not to a file", "L2": "only the evaluator's numbers enter the memory"}
CUDA_ONLY = {"T8": "a processor has no persisting cache", "S11": "a processor has no graphs of launches"}

Gain = Literal["right", "fast", "baseline"]
"""What a naive evaluator believes: the output is right; the call is fast too; the baseline is slow."""
Compare = Literal["allclose", "difference", "zip", "first", "sample"]
"""How a naive evaluator compares (see naive.py)."""


@dataclass(frozen=True)
class Expect:
    """A way to be refused for the right reason; empty patterns fit everything. `reason` is looked for with re.search
    in the reason and in the details of failed checks."""

    verdict: Verdict
    stage: Stage | Literal[""] = ""
    reason: str = ""


WRONG = (Expect("wrong"),)
POLICY = (Expect("failed", "policy"),)
CLOCK = (Expect("quarantined", "time"),)
OWN_WORK = (Expect("failed", "policy"), Expect("quarantined", reason="own"))
"""Found by the operators that ran, by replacing its kernels with nothing, or by their share of the time."""
FORBIDDEN = (
    Expect(
        "failed",
        reason=r"PermissionError|FileNotFoundError|OSError|[Pp]ermission|not permitted|refused|NOTHING|ProcessLookup",
    ),
)
"""What it needs is not there: each such cheat raises when its attack gives nothing."""

Truth = Callable[[RunResult, RunResult | None], bool]


@dataclass(frozen=True)
class Case:
    """One file of the table. `twin`: honest, must be correct.

    `truth`: where a cheat whose lie has no effect may be called correct, whether the result then tells the truth; it
    gets the result and, with `against_honest`, that of `honest`, the same work without the lie (empty: the task's own
    honest file). `naive` is None where the cheat cannot
    be shown to a naive evaluator on a processor, and `why` says why it would work.
    """

    id: str
    name: str
    task: str
    why: str
    text: str
    twin: bool = False
    expected: Sequence[Expect] = WRONG
    timing: bool = False
    truth: Truth | None = None
    against_honest: bool = False
    honest: str = ""
    naive: Gain | None = "right"
    compare: Compare = "allclose"
    candidate_first: bool = False
    slow: bool = False

    @property
    def key(self) -> str:
        """The row's name in a report."""
        return f"{self.id} {'honest ' if self.twin else ''}{self.name}"


@dataclass(frozen=True)
class Row:
    """What became of a case. `outcome` is what counts: a cheat is "refused", or "defused" (its lie had no effect and
    the result tells the truth), or "missed"; a twin is "correct" or a "false alarm"."""

    id: str
    name: str
    backend: Backend
    twin: bool
    outcome: Literal["refused", "defused", "missed", "correct", "false alarm"]
    verdict: Verdict
    stage: Stage
    reason: str
    seconds: float
    milliseconds: float | None = None
    honest_milliseconds: float | None = None
    """Of the same work without the lie, where that was measured."""

    @property
    def good(self) -> bool:
        return self.outcome in ("refused", "defused", "correct")


def cases(backend: Backend) -> list[Case]:
    """All rows for a backend, cheats and twins."""
    from tests.cheats import beside, clocks, cpu, cuda, falling_back, harness, meaning, phases, timing
    from tests.cheats.flavours import FLAVOURS

    flavour = FLAVOURS[backend]
    parts = [timing, clocks, phases, beside, meaning, falling_back, harness]
    rows = [case for part in parts for case in part.cases(flavour)]
    return rows + (cpu.cases() if backend == "cpp" else cuda.cases())


class Table:
    """Benches that stay open, one for each task, and the judging of rows. A context manager."""

    def __init__(self, backend: Backend, folder: Path, *, device: int = 0, limits: Limits | None = None) -> None:
        self.backend: Backend = backend
        self._folder = folder
        self._device = device
        self._limits = limits or Limits(run_seconds=30, load_seconds=30, memory_bytes=4 << 30, output_bytes=8 << 20)
        self._open = ExitStack()
        self._benches: dict[str, Bench] = {}
        self._honest: dict[str, RunResult] = {}

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def bench(self, task: str) -> Bench:
        """The open bench of a task."""
        if task not in self._benches:
            folder = self._folder / task
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{task}.py").write_text(TASKS[task].text(self.backend))
            self._benches[task] = self._open.enter_context(
                Bench(
                    Task.parse(str(folder / f"{task}.py")),
                    backend=self.backend,
                    folder=folder / "run",
                    limits=self._limits,
                    compile_baseline=False,
                    device=self._device,
                    hang_memory=False,
                )
            )
        return self._benches[task]

    def judge(self, task: str, text: str, *, timing: bool) -> RunResult:
        """The evaluator's result for a file."""
        bench = self.bench(task)
        file = self._folder / "kernel.py"
        file.write_text(text)
        return bench.run(bench.compile(file), timing=timing)

    def close(self, task: str) -> None:
        """Ends a task's bench: its memory on the device is free again."""
        bench = self._benches.pop(task, None)
        if bench is not None:
            bench.close()

    def row(self, case: Case) -> Row:
        """Judges one case."""
        begin = time.monotonic()
        result = self.judge(case.task, case.text, timing=case.timing)
        honest = self._honest_result(case) if case.against_honest and result.verdict == "correct" else None
        return Row(
            id=case.id,
            name=case.name,
            backend=self.backend,
            twin=case.twin,
            outcome=outcome(case, result, honest),
            verdict=result.verdict,
            stage=result.stage,
            reason=explain(result),
            seconds=time.monotonic() - begin,
            milliseconds=result.times_ms.candidate,
            honest_milliseconds=honest.times_ms.candidate if honest else None,
        )

    def _honest_result(self, case: Case) -> RunResult:
        text = honest_text(case, self.backend)
        if text not in self._honest:
            self._honest[text] = self.judge(case.task, text, timing=True)
        return self._honest[text]


def honest_text(case: Case, backend: Backend) -> str:
    """The file that does the same work without the lie."""
    from tests.cheats.flavours import FLAVOURS

    return case.honest or FLAVOURS[backend].file(TASKS[case.task])


def outcome(
    case: Case, result: RunResult, honest: RunResult | None
) -> Literal["refused", "defused", "missed", "correct", "false alarm"]:
    """What a result means for a case."""
    if case.twin:
        return "correct" if result.verdict == "correct" else "false alarm"
    if any(_fits(expect, result) for expect in case.expected):
        return "refused"
    if case.truth is not None and result.verdict == "correct" and case.truth(result, honest):
        return "defused"
    if result.verdict == "correct" and _another_time_taken(result):
        return "defused"
    return "missed"


TAKEN = ("calls on new values took", "the outer one's time is taken")


def _another_time_taken(result: RunResult) -> bool:
    """Whether, on a busy processor, the time of calls on new values or that of the outer clock was taken: what is kept
    from call to call, or claimed, then gains nothing."""
    return any(check.name == "clock" and any(words in check.detail for words in TAKEN) for check in result.checks)


def explain(result: RunResult) -> str:
    """The reason, with the failed checks."""
    failed = [f"{check.name}: {check.detail}" for check in result.checks if not check.passed]
    return " | ".join([result.reason, *failed]).strip(" |")[:2000]


def _fits(expect: Expect, result: RunResult) -> bool:
    return (
        result.verdict == expect.verdict
        and expect.stage in ("", result.stage)
        and re.search(expect.reason, explain(result)) is not None
    )


def run_table(
    backend: Backend,
    folder: Path,
    *,
    device: int = 0,
    only: Callable[[Case], bool] | None = None,
    limits: Limits | None = None,
) -> Iterator[Row]:
    """Judges the table's cases task by task, one bench open at a time, and yields each row as soon as it is known.

    `folder` gets the tasks' files and logs. `only` chooses cases (a run that goes on leaves out what is done).
    """
    with Table(backend, folder, device=device, limits=limits) as table:
        wanted = [case for case in cases(backend) if only is None or only(case)]
        for task in TASKS:
            for case in wanted:
                if case.task == task:
                    yield table.row(case)
            table.close(task)


def as_record(row: Row) -> dict[str, object]:
    """A row for a JSON file."""
    return dataclasses.asdict(row)
