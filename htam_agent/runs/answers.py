"""Answers to what a run waits for: read, and held against the question before anything of the run changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from htam_agent.batch.facts import TaskFacts
from htam_agent.batch.results import BatchError
from htam_agent.errors import RunError
from htam_agent.judging import Evaluation
from htam_agent.runs.waiting import Waiting, Wanted

Line = Evaluation | TaskFacts | BatchError
KINDS: dict[str, type[Line]] = {
    "htam.evaluate/1": Evaluation,
    "htam.facts/1": TaskFacts,
    "htam.batch-error/1": BatchError,
}
"""The lines of a results file of `htam evaluate --batch`."""
RESULTS_FORM = "Give the results file that `htam evaluate --batch` wrote for the batch of `htam runs pending`."
YES_NO = ("yes", "no")


def read_results(path: Path) -> list[Line]:
    """Every line of a results file.

    Raises RunError when it cannot be read or a line is no result; nothing is taken from such a file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"The verdicts file {str(path)!r} cannot be read: {error}.", RESULTS_FORM, "verdicts") from error
    return [_line(line, f"line {number} of {str(path)!r}") for number, line in _lines(text)]


def _lines(text: str) -> Iterable[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip())


def _line(given: object, where: str) -> Line:
    """One result, given as JSON text, as the object in it, or as the record."""
    if isinstance(given, Evaluation | TaskFacts | BatchError):
        return given
    try:
        value = json.loads(given) if isinstance(given, str) else given
    except ValueError as error:
        raise RunError(f"The {where} is not JSON: {error}.", RESULTS_FORM, "verdicts") from error
    kind = KINDS.get(str(value.get("schema"))) if isinstance(value, Mapping) else None
    if kind is None:
        raise RunError(f"The {where} is no verdict, facts or error of a batch.", RESULTS_FORM, "verdicts")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(map(str, first["loc"]))
        raise RunError(f"The {where} does not fit at {at!r}: {first['msg']}.", RESULTS_FORM, "verdicts") from error


def given_results(given: object) -> list[Line]:
    """The results that a parent graph resumed with: a list of objects as in the lines of a results file, or one.

    Raises RunError when they are something else.
    """
    items = given if isinstance(given, list | tuple) else [given]
    return [_line(item, f"answer {number}") for number, item in enumerate(items, start=1)]


def verdicts_for(waiting: Waiting, lines: Sequence[Line]) -> dict[str, Evaluation]:
    """Id -> the verdict on each candidate that the run waits for.

    Raises RunError when one is missing, is an error, or is about another kernel, task, device or rule than was asked.
    """
    return {wanted.id: _verdict(wanted, lines) for wanted in waiting.candidates}


def facts_for(waiting: Waiting, lines: Sequence[Line]) -> TaskFacts:
    """The facts that the run waits for. Raises RunError as verdicts_for does."""
    (wanted,) = waiting.candidates
    found = _of(wanted, lines)
    facts = [line for line in found if isinstance(line, TaskFacts)]
    if not facts:
        raise _missing(wanted, found, "facts")
    _same(wanted, facts[-1], ("task_sha256", "backend", "precision", "protocol"))
    return facts[-1]


def _verdict(wanted: Wanted, lines: Sequence[Line]) -> Evaluation:
    found = _of(wanted, lines)
    verdicts = [line for line in found if isinstance(line, Evaluation)]
    if not verdicts:
        raise _missing(wanted, found, "verdict")
    # A file that is appended to holds older questions under the same name only where somebody edited it: the last
    # verdict on this very kernel counts.
    same = [line for line in verdicts if line.kernel_sha256 == wanted.kernel_sha256]
    chosen = (same or verdicts)[-1]
    names = ("kernel_sha256", "task_sha256", "backend", "precision", "protocol", "policy", "device")
    _same(wanted, chosen, names)
    return chosen


def _of(wanted: Wanted, lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.id == wanted.id]


def _missing(wanted: Wanted, found: Sequence[Line], what: str) -> RunError:
    errors = [line.error for line in found if isinstance(line, BatchError)]
    if errors:
        message = f"The other machine has no {what} for {wanted.id!r}: {errors[-1].message}"
        return RunError(message, errors[-1].remedy, "verdicts-error")
    return RunError(f"There is no {what} for {wanted.id!r}.", RESULTS_FORM, "verdicts-missing")


def _same(wanted: Wanted, line: Evaluation | TaskFacts, names: Iterable[str]) -> None:
    """Raises RunError for the first thing in which an answer differs from its question."""
    for name in names:
        asked, got = getattr(wanted, name), getattr(line, name)
        if asked not in (None, "", got):
            raise RunError(
                f"The answer for {wanted.id!r} has another {name}: {got!r}, asked was {asked!r}.",
                "Judge what `htam runs pending` wrote for this run, unchanged and on the run's device.",
                "verdicts-other",
            )


def approval(given: object) -> bool:
    """Whether a yes was given. Raises RunError for anything but yes and no."""
    word = {True: "yes", False: "no"}.get(given, given) if isinstance(given, bool) else given
    if not isinstance(word, str) or word.strip().lower() not in YES_NO:
        raise RunError(f"The answer {given!r} is neither yes nor no.", "Give yes or no.", "approval")
    return word.strip().lower() == "yes"


def direction_answer(waiting: Waiting, given: object) -> str:
    """The direction that is to be taken, or empty for a no. Raises RunError for a direction that is not offered."""
    names = [offered.direction for offered in waiting.directions]
    word = given.strip() if isinstance(given, str) else given
    if word in names:
        return str(word)
    if isinstance(word, bool) or (isinstance(word, str) and word.lower() in YES_NO):
        return names[0] if approval(word) else ""
    raise RunError(
        f"The answer {given!r} is neither yes nor no nor a direction that can be taken.",
        f"Give yes, no or one of {', '.join(names)}.",
        "approval",
    )


def check_approval(waiting: Waiting, given: str) -> None:
    """Raises RunError when this answer to a run's question would not be taken."""
    if waiting.kind == "direction":
        direction_answer(waiting, given)
    elif waiting.kind == "code":
        approval(given)
    else:
        raise RunError(
            f"The run waits for {waiting.kind}, not for a yes.", "Give them with --verdicts FILE.", "waiting-kind"
        )
