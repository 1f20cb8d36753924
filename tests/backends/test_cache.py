"""The build cache: hits, failures, corruption, several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from htam_agent.backends.base import DefaultLimits
from htam_agent.backends.cache import BuildCache, build_with_cache, cache_home
from htam_agent.backends.cpp import CppBackend

GOOD = 'extern "C" int answer() { return 7; }\n'
BROKEN = "int answer( { }\n"


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache")


def binaries(cache: BuildCache) -> list[Path]:
    return sorted(cache.folder.rglob("*.bin"))


def test_the_second_build_is_a_copy(cache: BuildCache, tmp_path: Path) -> None:
    first = build_with_cache(CppBackend(), GOOD, tmp_path / "a", cache=cache)
    second = build_with_cache(CppBackend(), GOOD, tmp_path / "b", cache=cache)
    assert (first.cached, second.cached) == (False, True)
    assert Path(second.binary).parent == tmp_path / "b"
    assert second.folder == str(tmp_path / "b")
    assert Path(second.binary).read_bytes() == Path(first.binary).read_bytes()


def test_a_failure_is_remembered_with_its_log(cache: BuildCache, tmp_path: Path) -> None:
    first = build_with_cache(CppBackend(), BROKEN, tmp_path / "a", cache=cache)
    second = build_with_cache(CppBackend(), BROKEN, tmp_path / "b", cache=cache)
    assert not second.ok
    assert second.cached
    assert second.log == first.log != ""


def test_a_time_out_is_not_remembered(cache: BuildCache, tmp_path: Path) -> None:
    heavy = "#include <regex>\n#include <iostream>\n" + GOOD
    first = build_with_cache(CppBackend(), heavy, tmp_path, DefaultLimits(build_seconds=0.01), cache)
    assert "0.01 s" in first.reason
    assert build_with_cache(CppBackend(), heavy, tmp_path, cache=cache).ok


@pytest.mark.parametrize("damage", ["binary", "record", "empty-record", "missing-binary"])
def test_a_damaged_entry_is_built_again(cache: BuildCache, tmp_path: Path, damage: str) -> None:
    build_with_cache(CppBackend(), GOOD, tmp_path / "a", cache=cache)
    (binary,) = binaries(cache)
    record = binary.with_suffix(".json")
    if damage == "binary":
        binary.write_bytes(binary.read_bytes()[:-100])
    elif damage == "missing-binary":
        binary.unlink()
    else:
        record.write_text("{" if damage == "record" else "")
    again = build_with_cache(CppBackend(), GOOD, tmp_path / "b", cache=cache)
    assert again.ok
    assert not again.cached
    assert build_with_cache(CppBackend(), GOOD, tmp_path / "c", cache=cache).cached


def test_flags_and_compiler_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CppBackend()
    key = backend.build_key(GOOD)
    assert key == backend.build_key(GOOD)
    assert key != backend.build_key(GOOD + " ")
    monkeypatch.setattr("htam_agent.backends.cpp.CPP_FLAGS", ("-O1", "-shared"))
    assert backend.build_key(GOOD) != key


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = BuildCache(tmp_path / "file")
    for _ in range(2):
        result = build_with_cache(CppBackend(), GOOD, tmp_path / "a", cache=cache)
        assert result.ok
        assert not result.cached


def test_the_cache_lies_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_home() == tmp_path / "htam"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_home() == tmp_path / "home" / ".cache" / "htam"


def test_processes_that_build_the_same_source_at_once_all_succeed(tmp_path: Path) -> None:
    code = f"""
import ctypes, sys
from pathlib import Path
from htam_agent.backends.cache import BuildCache, build_with_cache
from htam_agent.backends.cpp import CppBackend
cache = BuildCache(Path({str(tmp_path / "cache")!r}))
for index in range(6):
    source = 'extern "C" int answer() {{ return %d; }}' % (index % 2)
    result = build_with_cache(CppBackend(), source, Path(sys.argv[1]) / str(index), cache=cache)
    assert result.ok, result.log
    assert ctypes.CDLL(result.binary).answer() == index % 2
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / name)], env=dict(os.environ))
        for name in "abcdefgh"
    ]
    assert [process.wait(60) for process in processes] == [0] * 8
    assert len(binaries(BuildCache(tmp_path / "cache"))) == 2
    assert not list((tmp_path / "cache").rglob(".part-*"))


def test_kept_failures_and_successes_do_not_mix(cache: BuildCache, tmp_path: Path) -> None:
    """A key that once failed and now builds (a compiler that was mended in place) is overwritten whole."""
    backend = CppBackend()
    failed = backend.build(BROKEN, tmp_path, DefaultLimits())
    assert cache.keep(backend, GOOD, failed)
    built = backend.build(GOOD, tmp_path, DefaultLimits())
    assert cache.keep(backend, GOOD, built)
    found = cache.find(backend, GOOD, tmp_path / "b")
    assert found is not None
    assert found.ok


@pytest.mark.parametrize("trick", ["another-file", "symlink"])
def test_a_binary_from_elsewhere_is_not_kept(cache: BuildCache, tmp_path: Path, trick: str) -> None:
    """A build child that was taken over can only claim a path; the main process would read it."""
    backend = CppBackend()
    secret = tmp_path / "secret"
    secret.write_text("not a library")
    built = backend.build(GOOD, tmp_path / "a", DefaultLimits())
    if trick == "symlink":
        Path(built.binary).unlink()
        Path(built.binary).symlink_to(secret)
    else:
        built = built.model_copy(update={"binary": str(secret)})
    assert not cache.keep(backend, GOOD, built)
    assert binaries(cache) == []
