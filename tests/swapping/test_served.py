"""What `htam doctor` and `htam config` say of swapped seams."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from htam_agent.settings import Settings
from htam_agent.swapping.choices import SEAM_NAMES
from htam_agent.swapping.served import served
from tests.support.command import htam
from tests.swapping.test_mcp_tools import PERF
from tests.swapping.third_party import install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = install(tmp_path / "site")
    monkeypatch.syspath_prepend(folder)
    return folder


def test_each_seam_says_who_serves_it_and_from_where(site: Path) -> None:
    plain = served(Settings.load())
    assert [line.seam for line in plain] == list(SEAM_NAMES)
    assert all(line.fact.startswith("built in: ") and not line.problem for line in plain)
    tools = {"compile": "fastcc", "profile": "mcp:perf/profile", "run": "fastcc:NoProfile", "coder": "model"}
    found = {line.seam: line for line in served(Settings.load({"tools": tools, "mcp": {"servers": {"perf": PERF}}}))}
    assert found["compile"].fact == "fastcc, from fastcc 1.2 (fastcc:Compiler)"
    assert found["profile"].fact.startswith(f"mcp:perf/profile, the MCP server {sys.executable}")
    assert "has no method run" in found["run"].problem
    assert found["run"].remedy
    assert found["coder"].fact == "built in: model"


def test_the_command_line_refuses_before_any_work_and_doctor_says_why(site: Path, tmp_path: Path) -> None:
    (tmp_path / "htam.toml").write_text('[tools]\ncompile = "fastcc:Slowcc"\n')
    (tmp_path / "task.py").write_text("")
    answer = htam("doctor", "--json", folder=tmp_path)
    lines = {line["name"]: line for line in answer.last["checks"]}
    assert lines["tools.compile"]["state"] == "missing"
    assert "no module 'fastcc'" in lines["tools.compile"]["fact"]
    shown = htam("config", "--json", folder=tmp_path)
    values = {line["name"]: line["value"] for line in shown.last["settings"]}
    assert values["tools"] == "compile = fastcc:Slowcc"
    task = Path(__file__).parents[1] / "tasks" / "pointwise_chain.py"
    refused = htam("optimize", str(task), "--backend", "cpp", "--json", folder=tmp_path)
    assert refused.code == 2
    assert refused.error["code"] == "tool-import"
    assert not (tmp_path / "htam-runs").exists(), "nothing was begun"
    assert json.loads(refused.stdout) == refused.last
