"""One batch file over all runs that wait for another machine, with everything that it names beside it.

    exchange.jsonl              one entry a question, for `htam evaluate --batch`
    exchange-files/HASH/NAME    the tasks and kernels, under their content's hash

The file and the folder go to the other machine together; the results file comes back.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from htam_agent.errors import RunError
from htam_agent.judging import file_sha256
from htam_agent.runs.folder import RunFolder, list_runs, write_atomically, write_error
from htam_agent.runs.waiting import WAITING_FILE, Waiting, Wanted

EXTERNAL = ("facts", "verdicts")


def waiting_runs(runs: Path, kinds: Iterable[str] = EXTERNAL) -> Iterator[tuple[RunFolder, Waiting]]:
    """The runs under `runs` that wait for something of these kinds, oldest first. A run whose records cannot be read is
    passed over here; `htam runs` names it."""
    for folder in list_runs(runs):
        if folder.path("result.json").exists():
            continue
        try:
            waiting = folder.read(WAITING_FILE, Waiting)
        except RunError:
            continue
        if waiting is not None and waiting.kind in kinds:
            yield folder, waiting


def write_batch(file: Path, waiting: Iterable[Waiting]) -> int:
    """Writes what these runs ask into `file`, with the files that it names; the number of entries.

    Raises RunError when a kernel or task has changed since the run asked, or something cannot be written; a batch file
    that was there before is then as it was.
    """
    lines = [json.dumps(_entry(file, wanted)) for each in waiting for wanted in each.candidates]
    write_atomically(file, "".join(f"{line}\n" for line in lines))
    return len(lines)


def _entry(file: Path, wanted: Wanted) -> dict[str, object]:
    entry: dict[str, object] = {
        "id": wanted.id,
        "task": _task(file, wanted),
        "backend": wanted.backend,
        "precision": wanted.precision,
        "protocol": wanted.protocol,
    }
    if wanted.kernel:
        entry |= {"kernel": _beside(file, Path(wanted.kernel), wanted.kernel_sha256), "deep": wanted.deep}
    else:
        entry["facts"] = True
    optional = {"policy": wanted.policy, "compile_baseline": wanted.compile_baseline}
    return entry | {name: value for name, value in optional.items() if value is not None}


def _task(file: Path, wanted: Wanted) -> str:
    """The task's text, with its file beside the batch; one that is named by its module is found there by its name."""
    for path, symbol in ((wanted.task, ""), wanted.task.rpartition(":")[::2]):
        if path and Path(path).is_file():
            return _beside(file, Path(path), wanted.task_sha256) + (f":{symbol}" if symbol else "")
    return wanted.task


def _beside(file: Path, source: Path, sha256: str) -> str:
    """Copies `source` beside the batch file; its path from there. Raises RunError when it is not what was asked."""
    found = file_sha256(source)
    if found != sha256:
        raise RunError(
            f"The file {str(source)!r} {'changed since the run asked about it' if found else 'is gone'}.",
            "Put it back, or resume the run, which then asks anew.",
            "run-changed",
        )
    name = f"{file.stem}-files/{sha256[:16]}/{source.name}"
    target = file.parent / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if file_sha256(target) != sha256:
            shutil.copyfile(source, target)
    except OSError as error:
        raise write_error(target, error) from error
    return name
