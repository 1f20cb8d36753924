"""Every cheat of the table is refused for the right reason on the backend cpp, every honest twin is correct, and a
naive evaluator believes the cheats.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from htam_agent.words import Backend
from tests.cheats.table import CUDA_ONLY, EXEMPT, IDS, Case, Table, cases, honest_text
from tests.cheats.tasks import TASKS

CASES = cases("cpp")
ORDERED = sorted(CASES, key=lambda case: (list(TASKS).index(case.task), case.slow))


def quick(rows: list[Case]) -> set[str]:
    """The rows of the fast suite: of each id its first cheat, and its first twin that is judged without the clock (and
    one twin with it). All others are slow tests."""
    chosen: dict[tuple[str, bool], str] = {}
    for row in rows:
        if not row.slow and not (row.twin and row.timing):
            chosen.setdefault((row.id, row.twin), row.key)
    return {*chosen.values(), "T5 honest a kernel that is plainly fast"}


QUICK = quick(CASES)


def second(rows: list[Case]) -> set[str]:
    """The slow rows that continuous integration runs: of each id the next cheat and the next twin."""
    chosen: dict[tuple[str, bool], str] = {}
    for row in rows:
        if row.key not in QUICK:
            chosen.setdefault((row.id, row.twin), row.key)
    return set(chosen.values())


SECOND = second(CASES)
KNOWN_MISSES = {
    "S8 cached by eight elements": "a call of 7 us that should take 12: below what the outer clock can prove "
    "(THREAT_MODEL.md, what is not defended)"
}
"""Reported as expected failures where they pass, and listed here, so that nobody takes them for refused."""


def marked(rows: list[Case]) -> list[object]:
    """Rows as parameters, each with the mark of the suite that runs it."""
    return [pytest.param(row, id=row.key, marks=_marks(row)) for row in rows]


def _marks(row: Case) -> list[pytest.MarkDecorator]:
    if row.key in QUICK:
        return []
    return [pytest.mark.slow if row.key in SECOND else pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    with Table("cpp", tmp_path_factory.mktemp("cheats")) as opened:
        yield opened


@pytest.mark.parametrize("backend", ["cpp", "cuda"])
def test_every_id_has_a_cheat_and_a_twin(backend: Backend) -> None:
    rows = cases(backend)
    for id_ in IDS:
        if backend == "cpp" and id_ in CUDA_ONLY:
            continue
        assert any(row.id == id_ and not row.twin for row in rows), id_
        assert any(row.id == id_ and row.twin for row in rows), id_
    assert {row.id for row in rows} <= set(IDS)
    assert not set(EXEMPT) & set(IDS)
    assert len({row.key for row in rows}) == len(rows)


@pytest.mark.parametrize("case", marked([case for case in ORDERED if not case.twin]))
def test_a_cheat_is_refused(judged: Table, case: Case) -> None:
    row = judged.row(case)
    if row.outcome == "missed" and case.key in KNOWN_MISSES:
        pytest.xfail(KNOWN_MISSES[case.key])
    assert row.outcome in ("refused", "defused"), row


@pytest.mark.parametrize("case", marked([case for case in ORDERED if case.twin]))
def test_an_honest_twin_is_correct(judged: Table, case: Case) -> None:
    row = judged.row(case)
    assert row.outcome == "correct", row


class Naive:
    """The naive evaluator's process."""

    def __init__(self, kernels: Table) -> None:
        self._kernels = kernels
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cheats.naive"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._ask: IO[str] = self._process.stdin
        self._told: IO[str] = self._process.stdout

    def judge(self, case: Case, text: str, folder: Path) -> dict[str, float]:
        file = folder / "kernel.py"
        file.write_text(text)
        compiled = self._kernels.bench(case.task).compile(file)
        if not compiled.ok:  # refused by its text; its kernel is the honest one
            honest = folder / "honest.py"
            honest.write_text(honest_text(case, "cpp"))
            compiled = self._kernels.bench(case.task).compile(honest)
        request = {
            "task": TASKS[case.task].text("cpp"),
            "file": str(file),
            "kernels": str(Path(compiled.binary).parent),
            "compare": case.compare,
            "candidate_first": case.candidate_first,
        }
        self._ask.write(json.dumps(request) + "\n")
        self._ask.flush()
        answer = json.loads(self._told.readline())
        assert "error" not in answer, answer
        return answer

    def honest(self, case: Case, folder: Path) -> dict[str, float]:
        """Of the same work without the lie."""
        return self.judge(case, honest_text(case, "cpp"), folder)

    def close(self) -> None:
        self._ask.close()
        self._told.close()
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def naive(judged: Table) -> Iterator[Naive]:
    process = Naive(judged)
    yield process
    process.close()


def shown_to_the_naive() -> list[Case]:
    """Of each id the first cheat that it is told to believe."""
    first: dict[str, Case] = {}
    for case in ORDERED:
        if not case.twin and case.naive:
            first.setdefault(case.id, case)
    return list(first.values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [pytest.param(case, id=case.key) for case in shown_to_the_naive()])
def test_a_naive_evaluator_believes_the_cheat(naive: Naive, case: Case, tmp_path: Path) -> None:
    """So the file is a working cheat, and not one that fails since it is broken."""
    told = naive.judge(case, case.text, tmp_path)
    assert told["right"]
    if case.naive == "fast":  # on a busy machine one look may mislead
        looks = [(told["ms"], naive.honest(case, tmp_path)["ms"])]
        while looks[-1][0] >= 0.7 * looks[-1][1] and len(looks) < 4:
            looks.append((naive.judge(case, case.text, tmp_path)["ms"], naive.honest(case, tmp_path)["ms"]))
        assert looks[-1][0] < 0.7 * looks[-1][1], looks
    if case.naive == "baseline":
        assert told["reference_ms"] > 1.5 * naive.honest(case, tmp_path)["reference_ms"]
