"""The winner of a run goes through the deep checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import ROOT, htam

TASK = ROOT / "tests" / "tasks" / "pointwise_chain.py"


@pytest.mark.slow
def test_the_winner_is_checked_deeply_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "htam.toml").write_text("deep = true\n", encoding="utf-8")
    answer = htam(
        "optimize", str(TASK), "--backend", "cpp", "--steps", "1", "--seed", "3", "--json", "--out", "run",
        folder=tmp_path,
    )  # fmt: skip
    assert answer.code == 0, answer.stderr
    checks = answer.last["checks"]
    assert isinstance(checks, list)
    found = {check["name"]: check for check in checks}
    assert found["other-shapes"]["passed"]
    assert found["address-sanitizer"]["passed"]
    (kept,) = (tmp_path / "run").rglob("deep.json")
    assert "deep" in json.loads(kept.read_text(encoding="utf-8"))["stages"]
