"""A run whose evaluator and coder are another package's: the graph is the same, and a fault keeps what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from htam_agent import optimize
from htam_agent.api import resume
from htam_agent.errors import InfrastructureError
from htam_agent.runs.records import RunManifest
from tests.support.command import ROOT
from tests.swapping.table_package import install

TASK = str(ROOT / "tests" / "tasks" / "pointwise_chain.py")


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(install(tmp_path / "site"))


def tools(evaluator: str) -> dict[str, str]:
    return {"evaluator": f"tablepkg:{evaluator}", "coder": "tablepkg:Constant"}


def test_a_run_by_another_packages_evaluator_and_coder(tmp_path: Path) -> None:
    result = optimize(TASK, tools=tools("Table"), backend="cpp", steps=2, seed=1, out="run")
    assert (result.verdict, result.device, result.speedup.best) == ("correct", "a table", 2.0)
    assert result.kernel is not None
    assert Path(result.kernel).read_text().startswith("# step")
    assert result.cost.usd is None, "what another coder costs is not known"
    manifest = RunManifest.model_validate_json((tmp_path / "run" / "run.json").read_text())
    assert manifest.options.coder == "custom"
    assert manifest.settings is not None
    assert manifest.settings.tools.given() == tools("Table")


def test_a_tool_that_dies_keeps_earlier_results_and_a_resume_goes_on(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError) as caught:
        optimize(TASK, tools=tools("Dying"), backend="cpp", steps=3, seed=1, out="run")
    assert "in profile, failed: OSError: the licence has ended" in caught.value.message
    first = json.loads((tmp_path / "run" / "steps" / "0001.json").read_text())
    assert first["verdict"] == "correct"
    result = resume(str(tmp_path / "run"))
    assert result.verdict == "correct"
    assert len(result.steps) >= 2
    assert result.steps[0].strategy == first["strategy"], "the first step was not done again"


def test_an_evaluator_without_its_facts_is_named() -> None:
    with pytest.raises(InfrastructureError, match="asked for its device, failed: AttributeError"):
        optimize(TASK, tools=tools("WithoutDevice"), backend="cpp", steps=1, seed=1, out="run")
