"""What a user gives to a run that waits, held against what it waits for before anything changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from htam_agent.errors import RunError
from htam_agent.runs.answers import check_approval, given_results, read_results
from htam_agent.runs.folder import RunFolder
from htam_agent.runs.waiting import WAITING_FILE, Waiting


def take_answers(folder: RunFolder, verdicts: str | Path | Sequence[object] | None, approve: str | None) -> None:
    """Stores verdicts or facts where the waiting node looks for them, and checks an approval.

    Raises RunError when the run waits for nothing, or for something else; it is then as it was.
    """
    if verdicts is None and approve is None:
        return
    waiting = folder.read(WAITING_FILE, Waiting)
    if waiting is None:
        raise RunError(
            f"The run {str(folder.root)!r} waits for nothing.",
            f"Go on with `htam resume {folder.root}` alone.",
            "waiting-nothing",
        )
    if approve is not None:
        check_approval(waiting, approve)
    if verdicts is not None:
        store_verdicts(folder, waiting, verdicts)


def store_verdicts(folder: RunFolder, waiting: Waiting, verdicts: str | Path | Sequence[object]) -> None:
    """Stores what a results file, or its lines, say about this run. Raises RunError as take_answers does."""
    from htam_agent.graph.external import store_results

    if waiting.kind not in ("facts", "verdicts"):
        raise RunError(
            f"The run waits for an approval ({waiting.kind}), not for verdicts.",
            "Answer with --approve yes, or no.",
            "waiting-kind",
        )
    lines = read_results(Path(verdicts)) if isinstance(verdicts, str | Path) else given_results(list(verdicts))
    store_results(folder, waiting, lines)
