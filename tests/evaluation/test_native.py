"""The harness's own C libraries: built once, by several at once, and refused with a reason."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from htam_agent.evaluation.native import native_library

BUILD = "from htam_agent.evaluation.native import native_library as f; print(f('clock'))"


def test_eight_processes_build_one_library(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    running = [
        subprocess.Popen([sys.executable, "-c", BUILD], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    said = {process.communicate(timeout=60)[0] for process in running}
    assert len(said) == 1
    (library,) = (tmp_path / "htam" / "native").iterdir()
    assert str(library) in said.pop()
    assert ctypes.CDLL(str(library)).htam_block_cpu


def test_without_a_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    library = native_library.__wrapped__("clock")
    assert not library.path
    assert "no C compiler" in library.reason


def test_a_source_that_does_not_compile_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\n[ \"$1\" = -v ] && exit 0\necho 'clock.c:1: error: no such type' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "no such type" in native_library.__wrapped__("clock").reason
    assert not list((tmp_path / "cache" / "htam" / "native").iterdir())
