"""Small C libraries of the harness's own, built when they are first needed and kept by their content.

The sources lie beside this file. A library is built by the machine's C compiler into the cache folder, under a name
that is a hash of source, flags and compiler; several processes may build the same one at once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from htam_agent.backends.cache import cache_home

COMPILERS = ("cc", "gcc", "g++", "clang")
FLAGS = ("-O2", "-fPIC", "-shared", "-std=c11", "-Wall", "-Wextra", "-Werror")
LIBRARIES = ("-ldl",)
BUILD_SECONDS = 60.0


@dataclass(frozen=True)
class NativeLibrary:
    """A shared library's path; where it could not be built, `path` is empty and `reason` says why."""

    path: str = ""
    reason: str = ""


@functools.cache
def native_library(name: str) -> NativeLibrary:
    """The library of `<name>.c`, built now unless it is there already. Never raises for a machine without a compiler:
    the reason says what is missing."""
    source = Path(__file__).with_name(f"{name}.c")
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return NativeLibrary(reason=f"no C compiler on PATH (looked for {', '.join(COMPILERS)})")
    try:
        code = source.read_bytes()
        key = hashlib.sha256(b"\0".join([code, " ".join(FLAGS + LIBRARIES).encode(), _version(compiler)])).hexdigest()
        target = cache_home() / "native" / f"{name}-{key[:32]}.so"
        if not target.is_file():
            _build(compiler, source, target)
    except (OSError, subprocess.SubprocessError) as error:
        return NativeLibrary(reason=f"{source.name} was not built by {compiler}: {_words(error)}")
    return NativeLibrary(path=str(target))


def _build(compiler: str, source: Path, target: Path) -> None:
    """Builds beside the target and renames: whoever comes second replaces the file by the same one."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(prefix=".part-", suffix=".so", dir=target.parent)
    os.close(descriptor)
    language = ("-x", "c") if Path(compiler).name.endswith("++") else ()
    try:
        subprocess.run(
            [compiler, *FLAGS, *language, str(source), "-o", part, *LIBRARIES],
            check=True,
            capture_output=True,
            timeout=BUILD_SECONDS,
            stdin=subprocess.DEVNULL,
        )
        os.chmod(part, 0o755)
        os.replace(part, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


@functools.cache
def _version(compiler: str) -> bytes:
    """What the compiler says of itself: its version and target are part of a build's identity."""
    return subprocess.run(
        [compiler, "-v"], check=True, capture_output=True, timeout=BUILD_SECONDS, stdin=subprocess.DEVNULL
    ).stderr


def _words(error: Exception) -> str:
    said = getattr(error, "stderr", b"") or b""
    return f"{error} {said.decode(errors='replace')[-500:]}".strip()
