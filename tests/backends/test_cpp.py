"""g++ builds for real."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from htam_agent.backends.base import Backend, DefaultLimits, binary_name
from htam_agent.backends.cache import SOURCE_REFUSED
from htam_agent.backends.cpp import CppBackend
from htam_agent.errors import BackendUnavailable, InfrastructureError
from htam_agent.verdict import KernelResources, Launch

GOOD = 'extern "C" int answer() { return 42; }\n'
BROKEN = 'extern "C" int answer() { return undeclared; }\n'


def call_answer(library: str) -> int:
    """Runs in this process: the source is this test's own."""
    return int(ctypes.CDLL(library).answer())


def test_a_good_source_builds_under_the_name_that_launchers_look_for(tmp_path: Path) -> None:
    result = CppBackend().build(GOOD, tmp_path, DefaultLimits())
    assert result.ok
    assert result.reason == ""
    assert Path(result.binary) == tmp_path / binary_name(GOOD, "cpp")
    assert call_answer(result.binary) == 42
    assert not list(tmp_path.glob("*.part*"))


def test_a_syntax_error_is_a_value_whose_log_begins_with_the_error(tmp_path: Path) -> None:
    result = CppBackend().build(BROKEN, tmp_path, DefaultLimits())
    assert not result.ok
    assert result.reason == SOURCE_REFUSED
    assert result.binary == ""
    assert "undeclared" in result.log
    assert str(tmp_path) not in result.log


def test_thousands_of_warnings_do_not_hide_the_first_error(tmp_path: Path) -> None:
    noise = "\n".join(f"#warning noise number {index} {'x' * 40}" for index in range(2000))
    result = CppBackend().build(f"{noise}\n{BROKEN}", tmp_path, DefaultLimits())
    assert not result.ok
    assert len(result.log) <= 20_000
    assert "undeclared" in result.log


def test_a_build_is_stopped_at_its_limit(tmp_path: Path) -> None:
    # Each level doubles the work of the compiler: it would take far longer than the limit.
    slow = (
        "template <int n, int m> struct F { static const int v = F<n - 1, 2 * m>::v + F<n - 1, 2 * m + 1>::v; };\n"
        "template <int m> struct F<0, m> { static const int v = m; };\n"
        "int x = F<28, 1>::v;\n"
    )
    result = CppBackend().build(slow, tmp_path, DefaultLimits(build_seconds=0.5))
    assert not result.ok
    assert "0.5 s" in result.reason
    assert result.seconds < 10


def test_a_missing_compiler_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    backend = CppBackend("no-such-compiler")
    answer = backend.available()
    assert not answer.ok
    assert "no-such-compiler" in answer.reason
    assert "g++" in answer.remedy
    with pytest.raises(BackendUnavailable, match="no-such-compiler"):
        backend.build(GOOD, tmp_path, DefaultLimits())


def test_flags_keep_nan_and_infinity(tmp_path: Path) -> None:
    source = (
        "#include <cmath>\n"
        'extern "C" int answer() { volatile float zero = 0.0f; float nan = zero / zero;\n'
        "  return (nan != nan) + 2 * std::isinf(1.0f / zero); }\n"
    )
    result = CppBackend().build(source, tmp_path, DefaultLimits())
    assert call_answer(result.binary) == 3


def test_device_facts_carry_what_numbers_depend_on() -> None:
    facts = CppBackend().device_facts()
    assert facts.backend == "cpp"
    assert "g++" in facts.compiler
    assert facts.threads >= 1
    assert facts.memory_bytes > 1 << 28
    assert facts.torch.startswith("2.")


def test_importing_backends_does_not_load_heavy_packages() -> None:
    code = (
        "import sys, htam_agent.backends.registry, htam_agent.tools\n"
        "print([m for m in ('torch', 'cuda.bindings', 'langchain_core', 'jinja2') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_it_is_a_backend() -> None:
    backend = CppBackend()
    assert isinstance(backend, Backend)
    launch = Launch(kernel="k", grid=(1, 1, 1), block=(1, 1, 1))
    assert backend.occupancy(KernelResources(name="k"), launch) is None


def failing_compiler(folder: Path, script: str) -> CppBackend:
    """A compiler in front of g++: real files and processes."""
    tool = folder / "g++-in-trouble"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return CppBackend(str(tool))


def test_a_full_disk_is_no_fact_about_the_source(tmp_path: Path) -> None:
    """g++ writes to /dev/full: the kernel gives it "no space left"."""
    work = tmp_path / "work"
    backend = failing_compiler(tmp_path, 'for last; do :; done\nln -sf /dev/full "$last"\nexec g++ "$@"')
    with pytest.raises(InfrastructureError, match="No space left"):
        backend.build(GOOD, work, DefaultLimits())
    assert not list(work.glob("*.part*"))
    assert backend.build(BROKEN, work, DefaultLimits()).reason == SOURCE_REFUSED


def test_a_killed_compiler_is_the_sources_and_not_remembered(tmp_path: Path) -> None:
    backend = failing_compiler(tmp_path, 'echo "g++: fatal error: Killed signal terminated program cc1plus"; exit 1')
    result = backend.build(GOOD, tmp_path / "work", DefaultLimits())
    assert not result.ok
    assert result.reason not in ("", SOURCE_REFUSED)
