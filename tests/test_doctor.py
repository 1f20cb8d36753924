"""`htam doctor`: what it says is what the machine does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HTAM = [sys.executable, "-c", "from htam_agent.cli import main; main()"]


def doctor(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **environment}
    return subprocess.run(
        [*HTAM, "doctor", *arguments], capture_output=True, text=True, cwd=folder, env=given, check=False, timeout=60
    )


def lines(ran: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    answer = json.loads(ran.stdout.splitlines()[-1])
    assert answer["schema"] == "htam.doctor/1"
    return {line["name"]: line for line in answer["checks"]}


def test_it_reports_the_backends_that_work(tmp_path: Path) -> None:
    ran = doctor(tmp_path, "--json", HTAM_API_KEY="sk-very-secret", HTAM_MODEL="some-model")
    found = lines(ran)
    assert ran.returncode == 0, ran.stderr
    assert "cpp" in json.loads(ran.stdout)["backends"]
    assert found["g++ with OpenMP"]["state"] == "ok"
    assert found["torch"]["state"] == "ok"
    assert found["chat model"]["state"] == "ok"
    assert found["LangSmith tracing"]["state"] == "off"
    assert "sk-very-secret" not in ran.stdout + ran.stderr
    assert all(line["remedy"] for line in found.values() if line["state"] in ("missing", "warning"))
    assert list(tmp_path.iterdir()) == [], "doctor must leave nothing behind"


def test_without_a_compiler_and_a_gpu_no_backend_works(tmp_path: Path) -> None:
    ran = doctor(tmp_path, "--json", PATH=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    found = lines(ran)
    assert found["g++ with OpenMP"]["state"] == "missing"
    assert "g++" in found["g++ with OpenMP"]["remedy"]
    assert ran.returncode == (0 if found["NVIDIA GPU"]["state"] == "ok" else 3)


def test_a_compiler_that_cannot_do_openmp_is_missing(tmp_path: Path) -> None:
    fake = tmp_path / "g++"
    fake.write_text('#!/bin/sh\necho "error: no OpenMP here" >&2\nexit 1\n')
    fake.chmod(0o755)
    found = lines(doctor(tmp_path, "--json", PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert found["g++ with OpenMP"]["state"] == "missing"


def test_it_warns_of_tracing_typing_errors_and_broken_settings(tmp_path: Path) -> None:
    ran = doctor(tmp_path, "--json", LANGSMITH_TRACING="true", HTAM_STEP="3")
    found = lines(ran)
    assert found["LangSmith tracing"]["state"] == "warning"
    assert "LANGSMITH_TRACING" in found["LangSmith tracing"]["remedy"]
    assert found["HTAM_STEP"]["state"] == "warning"
    (tmp_path / "htam.toml").write_text("steps = 0\n")
    assert lines(doctor(tmp_path, "--json"))["settings"]["state"] == "missing"


def test_a_server_that_does_not_answer_is_missing(tmp_path: Path) -> None:
    found = lines(doctor(tmp_path, "--json", HTAM_CHROMA_URL="http://127.0.0.1:9"))
    assert found["Chroma"]["state"] == "missing"
    assert "HTAM_CHROMA_URL" in found["Chroma"]["remedy"]


def test_a_folder_that_cannot_be_written_is_missing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    found = lines(doctor(tmp_path, "--json", HTAM_RUNS=str(blocked / "runs")))
    assert found["runs folder"]["state"] == "missing"
    assert "HTAM_RUNS" in found["runs folder"]["remedy"]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_torch_is_not_imported(tmp_path: Path, form: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "from htam_agent.cli import main; main()", "doctor", *form],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        timeout=60,
    )
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}
    assert "htam_agent.doctor" in imported
    assert not imported & {"torch", "langgraph", "chromadb"}


def test_a_check_that_breaks_does_not_hide_the_others(tmp_path: Path) -> None:
    code = (
        "import htam_agent.doctor as doctor, sys\n"
        "def broken() -> None: raise OSError('no such luck')\n"
        "doctor._python = broken\n"
        "report = doctor.examine()\n"
        "print(report.model_dump_json(by_alias=True))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    found = lines(ran)
    assert "no such luck" in found["doctor"]["fact"]
    assert found["g++ with OpenMP"]["state"] == "ok"
