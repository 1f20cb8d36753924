"""Building a candidate: its text is read and checked here, its kernel source compiled in a confined child process."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
from pathlib import Path

from htam_agent.backends.base import Backend, DefaultLimits
from htam_agent.backends.cache import TOO_LONG, BuildCache
from htam_agent.evaluation.channel import Garbled
from htam_agent.evaluation.files import fresh_folder, tail, write_new
from htam_agent.evaluation.hangs import Hang, hang_key
from htam_agent.evaluation.judge import MachineFault
from htam_agent.evaluation.messages import BuildOrder, Built
from htam_agent.evaluation.policy import SOURCE_LIMIT, inspect_source
from htam_agent.evaluation.process import Gone, Hung
from htam_agent.evaluation.session import Session
from htam_agent.plain_text import plain
from htam_agent.swapping.compilers import CompiledBy, OtherCompiler
from htam_agent.verdict import CompileResult
from htam_agent.words import Stage

SPARE_SECONDS = 5.0
"""A build child may take this much longer than its compiler, which keeps the limit itself where it can."""


def compile_candidate(session: Session, source: Path) -> CompileResult:
    """Reads a candidate file, checks its text against the policy and builds its kernel source.

    The file and its binary come to lie in a folder of their own. Nothing of the file is run.
    """
    started = time.monotonic()
    name = session.backend.name
    try:
        text = _read(source)
    except (OSError, ValueError) as error:
        reason = f"the file {source} cannot be read: {getattr(error, 'strerror', None) or error}"
        return CompileResult(ok=False, backend=name, stage="load", reason=reason, log=reason)
    folder = session.folder / "candidates" / hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = fresh_folder(folder)
    write_new(folder / "candidate.py", text)
    inspection = inspect_source(text, name, session.policy)
    stage: Stage = inspection.stage
    if inspection.reason:
        result = CompileResult(ok=False, backend=name, stage=stage, reason=inspection.reason, log=inspection.reason)
    elif inspection.deferred:
        result = CompileResult(
            ok=True, backend=name, deferred=True, reason="the file builds itself when it is imported"
        )
    else:
        result = _build(session, inspection.source, folder)
    return result.model_copy(update={"folder": str(folder), "seconds": time.monotonic() - started})


def _read(source: Path) -> str:
    """The text, without a byte order mark. Raises OSError or ValueError."""
    found = source.stat()
    if stat.S_ISDIR(found.st_mode):
        raise ValueError("it is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no regular file")  # a pipe or a device might never end
    if found.st_size > SOURCE_LIMIT:
        raise ValueError(f"it is larger than {SOURCE_LIMIT >> 20} MiB")
    try:
        return source.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error


def _build(session: Session, source: str, folder: Path) -> CompileResult:
    cache, other = BuildCache(), other_compiler(session.backend)
    kept = other is None or bool(other.implementation.version)
    found = cache.find(session.backend, source, folder) if kept else None
    if found is not None:
        return found
    key, limits = hang_key("build", session.backend.build_key(source)), {"build": session.limits.build_seconds}
    hang = session.hangs.find(key, limits) if session.hangs else None
    if hang is not None:
        reason = f"it was not built again: {hang.reason} (a longer limit, or the setting hang_memory, tries it again)"
        return CompileResult(ok=False, backend=session.backend.name, log=reason, reason=reason, cached=True)
    build = _build_served if other is not None and other.served else _build_confined
    result = within(build(session, source, folder), folder / "build")
    if kept:
        cache.keep(session.backend, source, result)
    if session.hangs and result.reason.startswith(TOO_LONG):
        session.hangs.keep(key, Hang(stage="compile", reason=result.reason, limits=limits))
    return result


def other_compiler(backend: Backend) -> OtherCompiler | None:
    """The compiler that the user chose in place of the backend's own, if any."""
    return backend.compiler if isinstance(backend, CompiledBy) else None


def _build_served(session: Session, source: str, folder: Path) -> CompileResult:
    """By an MCP server, in its process. Raises InfrastructureError when it fails or answers nonsense."""
    workplace = fresh_folder(folder / "build")
    result = session.backend.build(source, workplace, DefaultLimits(build_seconds=session.limits.build_seconds))
    return result.model_copy(update={"folder": str(workplace)})


def _build_confined(session: Session, source: str, folder: Path) -> CompileResult:
    seconds = session.limits.build_seconds
    log = session.log(folder, "build")
    # A folder of the build's own: the candidate's file beside it stays what was read.
    workplace = fresh_folder(folder / "build")
    worker = session.harness.spawn("build", log)
    order = BuildOrder(
        backend=session.backend.name,
        architecture=session.backend.target(),
        device=session.index,
        source=source,
        seconds=seconds,
        cell=session.cell(workplace, seconds),
    )
    other = other_compiler(session.backend)
    if other is not None:
        readable = [*order.cell.readable, *other.folders]
        cell = order.cell.model_copy(update={"readable": readable})
        order = order.model_copy(update={"compiler": other.path, "python_path": list(sys.path), "cell": cell})
    try:
        built = worker.ask(order, Built, seconds + SPARE_SECONDS)
    except Hung:
        reason = f"{TOO_LONG} {seconds:g} s and was stopped"
    except Gone as error:
        # A compiler that a source brings down dies by a signal; everything else is a fault of this program's own.
        if error.status is None or not os.WIFSIGNALED(error.status):
            raise _machine_fault(f"The build process {error}. {tail(log, 500)}") from error
        reason = f"the build failed: {error}. {tail(log, 500)}"
    except Garbled as error:
        raise _machine_fault(f"The build process answered nonsense: {error}. {tail(log, 500)}") from error
    else:
        if built.trouble is not None:
            raise MachineFault(built.trouble.message, built.trouble.remedy, built.trouble.code)
        if built.result is None:
            raise _machine_fault("The build process answered without a result.")
        return built.result.model_copy(
            update={"reason": plain(built.result.reason), "log": plain(built.result.log, len(built.result.log))}
        )
    finally:
        worker.kill()
    return CompileResult(ok=False, backend=session.backend.name, log=reason, reason=reason)


def within(result: CompileResult, folder: Path) -> CompileResult:
    """The result, refused where its binary is no plain file in `folder`. A build process answers for itself: one that a
    source has subverted could name any file that the main process may read, which the candidate would then get."""
    binary = Path(result.binary)
    if not result.binary or (binary.resolve().is_relative_to(folder.resolve()) and stat.S_ISREG(_mode(binary))):
        return result
    reason = "the build names a binary that is no plain file in its own folder"
    return CompileResult(ok=False, backend=result.backend, log=reason, reason=reason)


def _mode(path: Path) -> int:
    """Of the entry itself, not of what a link leads to; 0 where there is none."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def _machine_fault(message: str) -> MachineFault:
    return MachineFault(message.strip(), "Run `htam doctor`; the build can be repeated.")
