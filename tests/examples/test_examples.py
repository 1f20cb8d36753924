"""The examples run as they are, and the server's file names a graph that a server takes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import ROOT, clean_environment

SMALL = ROOT / "tests" / "tasks" / "pointwise_chain.py"
SHORT = {"HTAM_BACKEND": "cpp", "HTAM_STEPS": "1", "HTAM_SEED": "1"}

NOTEBOOK_RUNNER = """
import asyncio, json, sys

async def main():
    for cell in json.load(open(sys.argv[1]))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "cell", "exec"), globals())

asyncio.run(main())
"""
"""Runs the cells in order in __main__ under a running event loop, as Jupyter does; a kernel, its messages and ZeroMQ
would test Jupyter, not us."""


def run(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=clean_environment(folder, **SHORT),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_pipeline_runs(tmp_path: Path) -> None:
    out = run(str(ROOT / "examples" / "pipeline.py"), str(SMALL), folder=tmp_path)
    lines = out.strip().splitlines()
    assert lines[0] == "Release 1.0"
    assert [line.partition("-")[0] for line in lines[1:]] == ["pointwise_chain"]
    assert len(list((tmp_path / "htam-runs").glob("*/result.json"))) == 1


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    out = run("-c", NOTEBOOK_RUNNER, str(ROOT / "examples" / "notebook.ipynb"), folder=tmp_path)
    assert "prepared" in out
    assert "largest difference" in out


def test_the_notebook_is_stored_without_outputs() -> None:
    notebook = json.loads((ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


def test_the_server_gets_a_compiled_graph_without_a_checkpointer(tmp_path: Path) -> None:
    config = json.loads((ROOT / "langgraph.json").read_text(encoding="utf-8"))
    file, _, name = config["graphs"]["htam"]["path"].partition(":")
    spec = importlib.util.spec_from_file_location("served", ROOT / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    graph = getattr(module, name)
    assert graph.checkpointer is None
    assert graph.store is None
    assert set(graph.get_input_jsonschema()["properties"]) == {"task"}
    assert asyncio.iscoroutinefunction(graph.ainvoke)
