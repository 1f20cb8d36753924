"""Record and replay: every exchange with a model in a folder, and the same run again without a network.

    recording.json                   form, version of htam_agent, when
    exchanges/0002-0-1-repair-1.json one exchange: place in the run, role, number; messages; answer

The key and the address are not stored. On replay a request must be the recorded one. What a machine measures differs
from run to run, and so do secret seeds, so numbers outside of code, paths and long hexadecimal names are left out of
the comparison; every other word must agree, and so must the types and shapes of tensors.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field, ValidationError

from htam_agent.coding.chat import Answer, Message, Role, Structure
from htam_agent.coding.redaction import redacted
from htam_agent.coding.scope import Scope
from htam_agent.coding.structured import parse_object
from htam_agent.errors import RunError, SettingsError
from htam_agent.runs.folder import write_atomically, write_error
from htam_agent.version import __version__
from htam_agent.words import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

CODE_LANGUAGES = ("python", "py", "cpp", "c++", "cuda", "c")

_CHANGING = re.compile(
    r"(?P<tensor>\b(?:(?:bfloat|float|uint|int|complex)\d\w*|bool) \[[\d, ]*\])"
    r"|(?P<path>(?<![\w.])/[\w.+-]+(?:/[\w.+-]+)+)"
    r"|(?P<name>\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b)"
    r"|(?P<number>(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
)
_FENCE = re.compile(r"^(`{3,})(\w*)[^\n]*\n.*?^\1\s*$", re.MULTILINE | re.DOTALL)


class RecordingHead(Record):
    """recording.json."""

    schema_: Literal["htam.recording/1"] = Field("htam.recording/1", alias="schema", serialization_alias="schema")
    version: str
    """Of htam_agent."""
    created: str
    """UTC, ISO 8601."""
    seed: int
    """Of the run's selection: a replay without a seed of its own takes it."""


class Exchange(Record):
    """One question and its answer."""

    schema_: Literal["htam.exchange/1"] = Field("htam.exchange/1", alias="schema", serialization_alias="schema")
    place: str
    """Where in the run it was asked: step, candidate, attempt."""
    role: Role
    number: int
    """Which question of this role at this place, from 1."""
    model: str
    wanted: str | None = None
    """Name of the schema that the answer was asked for in."""
    messages: list[Message]
    text: str
    structure: Structure = "none"
    cut_off: bool = False
    refused: str = ""
    prompt_tokens: int
    completion_tokens: int
    estimated: bool = False
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.place}-{self.role}-{self.number}"


class Places:
    """Numbers the questions of each role at each place of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked: Counter[tuple[str, Role]] = Counter()
        self._run: str | None = None
        self._lock = threading.Lock()

    def next(self, scope: Scope | None, role: Role) -> tuple[str, int]:
        """Place and number of a question that is asked now. Raises RunError for a second run."""
        self.claim(scope)
        place = scope.place if scope is not None else "outside"
        with self._lock:
            self._asked[place, role] += 1
            return place, self._asked[place, role]

    def claim(self, scope: Scope | None) -> None:
        """The folder is this run's from now on. Raises RunError where it is another's already."""
        run = scope.run if scope is not None else ""
        with self._lock:
            self._run = run if self._run is None else self._run
            if run != self._run:
                raise RunError(
                    f"The recording in {str(self._folder)!r} is of one run, and a second one asks.",
                    "Give each run a folder of its own (record, replay).",
                    "recording-in-use",
                )


class Recorder:
    """Keeps every exchange in `folder`. `secrets` are struck out of every text. The recording begins with the first
    exchange: a run that failed before it leaves none behind, and can be tried again."""

    def __init__(self, folder: Path, seed: int = 0, secrets: Iterable[str] = (), resumed: bool = False) -> None:
        """Raises SettingsError when the folder holds a recording already (and the run is not `resumed`), RunError when
        it cannot be written."""
        self._folder = folder.absolute()
        self._seed = seed
        self._secrets = list(secrets)
        self._places = Places(self._folder)
        self._lock = threading.Lock()
        self._begun = False
        if resumed and (self._folder / "recording.json").exists():
            read_head(self._folder)
            self._begun = True
        self._check()

    def _check(self) -> None:
        """Raises SettingsError for another recording's folder, RunError for one that cannot be written: before the
        first answer is paid for."""
        if self._begun:
            return
        if (self._folder / "recording.json").exists():
            raise SettingsError(
                f"The folder {str(self._folder)!r} (record) already holds a recording.",
                "Name another folder, or remove that one.",
                "recording-exists",
            )
        head = self._folder / "recording.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise write_error(head, error) from error

    def claim(self, scope: Scope | None) -> None:
        """The recording is this run's from now on. Raises RunError where it is another's: asked before a question is
        sent, so that nobody pays for an answer that cannot be kept."""
        self._places.claim(scope)

    def _begin(self) -> None:
        """Write the head, once."""
        with self._lock:
            if self._begun:
                return
            self._check()
            created = datetime.now(UTC).isoformat(timespec="seconds")
            made = RecordingHead(schema_="htam.recording/1", version=__version__, created=created, seed=self._seed)
            write_atomically(self._folder / "recording.json", made.model_dump_json(by_alias=True) + "\n")
            self._begun = True

    def keep(
        self,
        scope: Scope | None,
        role: Role,
        model: str,
        messages: Sequence[Message],
        wanted: type[BaseModel] | None,
        answer: Answer,
    ) -> None:
        """Store one exchange."""
        place, number = self._places.next(scope, role)
        self._begin()
        exchange = Exchange(
            schema_="htam.exchange/1",
            place=place,
            role=role,
            number=number,
            model=model,
            wanted=wanted.__name__ if wanted else None,
            messages=[(speaker, self._hidden(text)) for speaker, text in messages],
            **answer.model_dump(exclude={"parsed", "text", "refused"}),
            text=self._hidden(answer.text),
            refused=self._hidden(answer.refused),
        )
        path = self._folder / "exchanges" / f"{exchange.name}.json"
        write_atomically(path, exchange.model_dump_json(by_alias=True, indent=1) + "\n")

    def _hidden(self, text: str) -> str:
        return redacted(text, self._secrets)


class Replayer:
    """Gives the answers of a recording again. Nothing is sent anywhere."""

    def __init__(self, folder: Path) -> None:
        """Raises SettingsError when the folder is no recording, or one of another version."""
        self._folder = folder.absolute()
        read_head(self._folder)
        self._places = Places(self._folder)

    def answer(
        self, scope: Scope | None, role: Role, messages: Sequence[Message], wanted: type[BaseModel] | None
    ) -> Answer:
        """The recorded answer to this question. Raises RunError when the recording has none, or another question."""
        place, number = self._places.next(scope, role)
        exchange = self._read(f"{place}-{role}-{number}")
        difference = first_difference(exchange.messages, list(messages))
        named = wanted.__name__ if wanted else None
        if not difference and exchange.wanted != named:
            difference = f"the answer was asked for as {exchange.wanted or 'text'}, now as {named or 'text'}"
        if difference:
            raise RunError(
                f"Replay: the request {exchange.name} differs from the recorded one: {difference}.",
                "The run went another way than the recorded one (other prompts, task, options or measurements): "
                "record it anew.",
                "replay-differs",
            )
        kept = exchange.model_dump(include=set(Answer.model_fields) - {"parsed"})
        return Answer(**kept, parsed=parse_object(exchange.text, wanted) if wanted else None)

    def _read(self, name: str) -> Exchange:
        path = self._folder / "exchanges" / f"{name}.json"
        try:
            return Exchange.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            known = sorted(one.stem for one in path.parent.glob("*.json"))
            shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
            raise RunError(
                f"Replay: the run asks {name}, which was not recorded (there are: {shown or 'none'}).",
                "The run went another way than the recorded one: record it anew.",
                "replay-differs",
            ) from error
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            raise RunError(
                f"The recorded exchange {str(path)!r} cannot be read.", "Record the run anew.", "replay-corrupt"
            ) from error


def first_difference(recorded: Sequence[Message], asked: Sequence[Message]) -> str:
    """Where two conversations part, in words; empty when they agree in all that must."""
    if [speaker for speaker, _ in recorded] != [speaker for speaker, _ in asked]:
        return f"it has the messages {_speakers(asked)}, recorded were {_speakers(recorded)}"
    for number, ((speaker, was), (_, now)) in enumerate(zip(recorded, asked, strict=True), start=1):
        before, after = comparable(was).splitlines(), comparable(now).splitlines()
        if before == after:
            continue
        line = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
        at = min(len(before), len(after)) if line is None else line
        one, other = _line(was.splitlines(), before, at), _line(now.splitlines(), after, at)
        same = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
        start = max(0, same - 40)
        return (
            f"message {number} ({speaker}), line {at + 1}: recorded {_window(one, start)}, now {_window(other, start)}"
        )
    return ""


def comparable(text: str) -> str:
    """The text without what a machine measures: numbers outside of code and of tensors' types and shapes, paths, long
    hexadecimal names."""
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        if fence[2].lower() in CODE_LANGUAGES:
            parts += [_masked(text[end : fence.start()]), fence[0]]
            end = fence.end()
    return "".join([*parts, _masked(text[end:])])


def _masked(text: str) -> str:
    # A tensor's type and shape are the task's, and no measurement.
    return _CHANGING.sub(lambda found: found[0] if found.lastgroup == "tensor" else f"<{found.lastgroup}>", text)


def _line(lines: Sequence[str], masked: Sequence[str], at: int) -> str:
    """The line as it was, where masking kept the lines apart; empty past the end."""
    shown = lines if len(lines) == len(masked) else masked
    return shown[at].strip() if at < len(shown) else ""


def _window(line: str, start: int) -> str:
    """The part of a line round the first difference."""
    return repr(("..." if start else "") + line[start : start + 160]) if line else "nothing"


def _speakers(messages: Sequence[Message]) -> str:
    return ", ".join(speaker for speaker, _ in messages) or "none"


def read_head(folder: Path) -> RecordingHead:
    """What the recording says of itself. Raises SettingsError when there is none, or it is of another version."""
    path = folder / "recording.json"
    try:
        head = RecordingHead.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(
            f"The folder {str(folder)!r} is no recording: recording.json is missing.",
            "Name a folder that --record made.",
            "recording-missing",
        ) from error
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise SettingsError(
            f"{str(path)!r} is not the head of a recording that this version reads.",
            "Record the run anew.",
            "recording-version",
        ) from error
    if head.version != __version__:
        raise SettingsError(
            f"The recording in {str(folder)!r} was made by htam_agent {head.version}; this is {__version__}.",
            "Replay it with that version, or record the run anew.",
            "recording-version",
        )
    return head
