"""A content-addressed cache of builds, failures included, safe for several processes at once.

Only the main process writes here: what a confined child built is judged a success by the harness first, then kept.
Every entry is one record file plus, for a success, one binary, each put in place by an atomic rename. An entry whose
record does not parse or whose binary does not have the recorded hash counts as absent and is built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from pydantic import ValidationError

from htam_agent.backends.base import Backend, BuildLimits, DefaultLimits, binary_name
from htam_agent.verdict import CompileResult
from htam_agent.words import Record


class _Entry(Record):
    result: CompileResult
    binary_sha256: str = ""


def cache_home() -> Path:
    """$XDG_CACHE_HOME/htam, else ~/.cache/htam."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "htam"


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data` so that a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".part-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _read_plain(path: Path) -> bytes:
    """The bytes of a plain file; a link or a pipe in its place, which a confined child may have put there, is an
    OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no plain file")
        return file.read()


class BuildCache:
    """Builds by key. `folder` defaults to `cache_home() / "builds"`.

    The cache is a convenience: a folder that cannot be written makes `keep` answer False and nothing else.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else cache_home() / "builds"

    def find(self, backend: Backend, source: str, folder: Path) -> CompileResult | None:
        """The kept result with its binary copied into `folder`, or None."""
        started = time.monotonic()
        record, binary = self._paths(backend.build_key(source))
        try:
            entry = _Entry.model_validate_json(record.read_bytes())
            if not entry.result.ok:
                return entry.result.model_copy(update={"cached": True, "folder": str(folder)})
            data = binary.read_bytes()
        except (OSError, ValidationError):
            return None
        if hashlib.sha256(data).hexdigest() != entry.binary_sha256:
            return None
        target = folder / binary_name(source, backend.target())
        write_atomically(target, data)
        return entry.result.model_copy(
            update={
                "cached": True,
                "binary": str(target),
                "folder": str(folder),
                "seconds": time.monotonic() - started,
            }
        )

    def keep(self, backend: Backend, source: str, result: CompileResult) -> bool:
        """Remember a result. Only facts about the source are kept: a build that ran out of time or memory is not.

        The result may come from a confined child, so its binary is taken only from where a build puts it.
        """
        if result.deferred or (not result.ok and result.reason != SOURCE_REFUSED):
            return False
        built = Path(result.folder) / binary_name(source, backend.target())
        if result.ok and result.binary != str(built):
            return False
        record, binary = self._paths(backend.build_key(source))
        try:
            digest = ""
            if result.ok:
                data = _read_plain(built)
                digest = hashlib.sha256(data).hexdigest()
                write_atomically(binary, data)
            entry = _Entry(result=result, binary_sha256=digest)
            write_atomically(record, entry.model_dump_json().encode())
        except OSError:
            return False
        return True

    def clear(self) -> None:
        """Forget everything."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _paths(self, key: str) -> tuple[Path, Path]:
        stem = self.folder / key[:2] / key
        return stem.with_suffix(".json"), stem.with_suffix(".bin")


SOURCE_REFUSED = "the compiler refused the source"
"""`CompileResult.reason` of a build whose failure is a fact about the source."""

TOO_LONG = "the build took longer than"
"""How the reason of a build begins that was stopped at its limit."""


def build_with_cache(
    backend: Backend,
    source: str,
    folder: Path,
    limits: BuildLimits | None = None,
    cache: BuildCache | None = None,
) -> CompileResult:
    """Find the build or make it in this process. For trusted sources and tests: the harness confines its builds."""
    cache = cache if cache is not None else BuildCache()
    found = cache.find(backend, source, folder)
    if found is not None:
        return found
    result = backend.build(source, folder, limits if limits is not None else DefaultLimits())
    cache.keep(backend, source, result)
    return result
