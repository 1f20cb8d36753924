"""End to end: an installed package builds, and an MCP server profiles, dies, and comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from htam_agent.runs.records import Result
from tests.support.command import ROOT, Answer, clean_environment
from tests.swapping.test_mcp_tools import SERVER
from tests.swapping.third_party import install

TOML = f"""
[tools]
compile = "fastcc"
run = "fastcc:Judge"
profile = {{mcp = "perf/die"}}

[mcp.servers.perf]
command = {json.dumps(sys.executable)}
args = [{json.dumps(SERVER)}]
"""


def environment(folder: Path) -> Path:
    """A virtual environment that has everything of this one, and the third party's package; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    (site / "parent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    install(site)
    return folder / "bin" / "python"


def run(python: Path, folder: Path, *arguments: str, **variables: str) -> Answer:
    cache = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in os.environ}
    base = {name: value for name, value in clean_environment(folder).items() if name != "XDG_CACHE_HOME"}
    done = subprocess.run(
        [str(python), "-m", "htam_agent", *arguments, "--json"],
        cwd=folder, env={**base, **cache, **variables}, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_an_installed_compiler_and_a_profiler_that_dies_in_the_middle(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    (tmp_path / "htam.toml").write_text(TOML)
    task = str(ROOT / "tests" / "tasks" / "pointwise_chain.py")
    died = run(python, tmp_path, "optimize", task, "--backend", "cpp", "--steps", "1", "--seed", "1", "--out", "run")
    assert died.code == 3, died.stdout + died.stderr
    assert died.error["code"] == "mcp-failed"
    assert "out of licences" in died.error["message"]
    assert len(died.stdout.splitlines()) == 1
    judged = list((tmp_path / "run" / "candidates").rglob("run.json"))
    assert [json.loads(path.read_text())["verdict"] for path in judged] == ["correct"], "what was found is kept"

    tools = {"compile": "fastcc", "run": "fastcc:Judge", "profile": "mcp:perf/profile"}
    resumed = run(python, tmp_path, "resume", "run", HTAM_TOOLS=json.dumps(tools))
    assert resumed.code == 0, resumed.stdout + resumed.stderr
    result = Result.model_validate(resumed.last)
    assert result.verdict == "correct"
    assert result.profile is not None
    assert result.profile.diagnosis == "cpp: correct at candidate.py"
    notes = [check.detail for check in result.checks if check.name in ("compiler", "judge")]
    assert notes == [
        "built by fastcc; the file alone builds with g++",
        "judged by fastcc:Judge, not by the built-in evaluator",
    ]
