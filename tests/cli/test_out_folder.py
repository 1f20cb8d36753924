"""`--out` names a new run's folder: one that holds a run is refused, untouched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.graph.test_resume_after_kill import killed_at
from tests.support.command import ROOT, htam

TASKS = ROOT / "tests" / "tasks"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("task", ["pointwise_chain.py", "row_softmax.py"])
def test_a_folder_that_holds_a_run_is_refused_whatever_the_task(tmp_path: Path, task: str) -> None:
    run = killed_at("prepare", 1, tmp_path)
    before = contents(run)
    answer = htam("optimize", str(TASKS / task), "--backend", "cpp", "--out", str(run), "--json", folder=tmp_path)
    assert answer.code == 2
    assert answer.error["code"] == "run-exists"
    assert f"htam resume {run}" in answer.error["remedy"]
    assert contents(run) == before
