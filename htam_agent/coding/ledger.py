"""What a run has spent on its models, on disk, and the budget that the next question must fit in.

`calls.jsonl` in the run's folder gets a line before each question (what it may take) and one after it (what it took). A
question whose end is missing was under way when the process died: what it was expected to take counts as spent. So a
resumed run goes on with the whole bill.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from htam_agent.coding.chat import Answer, Role
from htam_agent.coding.prices import Price, PriceTable
from htam_agent.coding.roles import ModelChoice
from htam_agent.coding.usage import ModelUse, total_usd
from htam_agent.errors import BudgetSpent, RunError
from htam_agent.runs.folder import write_atomically
from htam_agent.words import Record

BYTES_A_TOKEN = 3.0
"""Of UTF-8, for a question that is still to be asked: code has more tokens than prose, Chinese about one for each
character of three bytes, and too many are reserved, not too few."""
LARGER_BUDGET = "Go on with a larger budget: htam resume --max-cost or --max-tokens."
FIRST_ANSWER = 1024
"""Tokens that an answer is expected to have before one was given."""
LONGEST_ANSWER = 32_768
"""Tokens that one answer may have under a budget where no setting limits it: what is reserved must be bounded."""


FOREIGN = "custom"
"""The model's name in the books for what a coder of the user's own says that it took."""


class Budget(Record):
    """The most that a run may spend on its models; None where nothing is said."""

    usd: float | None = Field(None, gt=0)
    tokens: int | None = Field(None, gt=0)

    def words(self) -> str:
        """ "100,000 tokens and $2.5"."""
        limits = [f"{self.tokens:,} tokens"] if self.tokens is not None else []
        limits += [f"${self.usd:g}"] if self.usd is not None else []
        return " and ".join(limits)


class Entry(Record):
    """One line of the file: a question that begins, with what it is expected to take; its end, with what it took; an
    attempt that was `lost`, which may be billed; a question that `failed`, which is not."""

    call: int
    event: Literal["begun", "ended", "lost", "failed"]
    step: int
    role: Role
    model: str
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    estimated: bool
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Question(Record):
    """A question that may be asked. `limit`: the most tokens that its answer may have, which are reserved for it; None
    without a budget."""

    begun: Entry
    price: Price | None
    limit: int | None

    @property
    def reserved_tokens(self) -> int:
        return self.begun.prompt_tokens + (self.limit or self.begun.completion_tokens)

    @property
    def reserved_usd(self) -> float:
        return self.price.usd(self.begun.prompt_tokens, self.limit or 0) if self.price else 0.0


class Ledger:
    """The books of one run. Safe for threads; one process at a time writes a run's folder."""

    def __init__(self, path: Path | None, prices: PriceTable | None = None, budget: Budget | None = None) -> None:
        """`path` None keeps the books in memory alone. Raises RunError when the file is corrupt."""
        self.budget = budget if budget is not None else Budget()
        self._path = path
        self._prices = prices if prices is not None else PriceTable()
        self._settled = threading.Condition()
        self._open: dict[int, Question] = {}
        self._spent: list[Entry] = []
        self._next = 1
        if path is not None:
            self._take_up(_read(path))

    def begin(self, choice: ModelChoice, step: int, size: int) -> Question:
        """Room for a question of so many bytes. Where other questions of the run have reserved what is missing, it
        waits for their ends.

        Raises BudgetSpent when it could cost more than is left, before anything is sent.
        """
        price = self._prices.find(choice)
        asked = int(size / BYTES_A_TOKEN) + 1
        with self._settled:
            entry = Entry(
                call=self._next,
                event="begun",
                step=step,
                role=choice.role,
                model=choice.bare_model,
                prompt_tokens=asked,
                completion_tokens=0,
                usd=None,
                estimated=True,
            )
            self._next += 1
            return self._reserve(entry, price, choice.max_answer_tokens)

    def end(self, question: Question, answer: Answer) -> None:
        """The question was answered."""
        self._settle(
            question, "ended", answer.prompt_tokens, answer.completion_tokens, answer.estimated, answer.seconds
        )

    def lose(self, question: Question) -> None:
        """The attempt failed after the model may have worked, and nobody saw how long its answer was: under a budget
        all that was reserved for it counts as spent, without one what it was expected to take."""
        begun = question.begun
        answered = begun.completion_tokens if question.limit is None else question.limit
        self._settle(question, "lost", begun.prompt_tokens, answered, estimated=True)

    def fail(self, question: Question) -> None:
        """The endpoint refused the question, or was not there: nothing was spent."""
        self._settle(question, "failed", 0, 0, estimated=False)

    def add(self, choice: ModelChoice, step: int, answer: Answer) -> None:
        """What was spent outside the run's questions: in the preflight, or by a coder of the user's own, which says its
        tokens."""
        price = self._prices.find(choice)
        with self._settled:
            self._next += 1
            entry = Entry(
                call=self._next - 1,
                event="ended",
                step=step,
                role=choice.role,
                model=choice.bare_model,
                prompt_tokens=answer.prompt_tokens,
                completion_tokens=answer.completion_tokens,
                usd=price.usd(answer.prompt_tokens, answer.completion_tokens) if price else None,
                estimated=answer.estimated,
                seconds=answer.seconds,
            )
            self._write(entry)
            self._spent.append(entry)

    def check(self) -> None:
        """Before a coder is asked, which may be one of the user's own that keeps no limit: there must be room for as
        much as its largest answer so far.

        Raises BudgetSpent where there is not.
        """
        with self._settled:
            tokens, usd = sum(one.tokens for one in self._spent), sum(one.usd or 0.0 for one in self._spent)
            words = self._spent_words()
            largest = max((one.tokens for one in self._spent if one.model == FOREIGN), default=1)
        over = self.budget.tokens is not None and tokens + largest > self.budget.tokens
        if over or (self.budget.usd is not None and usd >= self.budget.usd):
            raise BudgetSpent(
                f"The budget of {self.budget.words()} has no room for a next answer of the coder ({words}).",
                LARGER_BUDGET,
            )

    @property
    def entries(self) -> int:
        """How many attempts were put down."""
        with self._settled:
            return self._next - 1

    def uses(self, step: int | None = None) -> list[ModelUse]:
        """What was spent, question by question: in one step, or in the whole run."""
        with self._settled:
            spent = [entry for entry in self._spent if step in (None, entry.step) and entry.tokens]
        return [
            ModelUse(
                role=entry.role,
                prompt_tokens=entry.prompt_tokens,
                completion_tokens=entry.completion_tokens,
                usd=entry.usd,
                estimated=entry.estimated,
            )
            for entry in spent
        ]

    def summary(self) -> str:
        """ "3,210 tokens of 10,000, $0.0120 of $1" for a progress line; empty while nothing was spent."""
        uses = self.uses()
        tokens, usd = sum(use.tokens for use in uses), total_usd(uses)
        if not tokens:
            return ""
        about = "about " if any(use.estimated for use in uses) else ""
        text = f"{about}{tokens:,} tokens" + (f" of {self.budget.tokens:,}" if self.budget.tokens else "")
        if usd is None:
            return text
        return f"{text}, ${usd:.4f}" + (f" of ${self.budget.usd:g}" if self.budget.usd else "")

    def _reserve(self, entry: Entry, price: Price | None, most: int | None) -> Question:
        """Called with the lock held."""
        while True:
            expected = min(self._expected(entry.role), most or LONGEST_ANSWER)
            room = self._room(price, entry.prompt_tokens)
            if room is None or room >= expected:
                break
            if not self._open:
                raise BudgetSpent(
                    f"The budget of {self.budget.words()} has no room for a next question of about "
                    f"{entry.prompt_tokens + expected:,} tokens ({self._spent_words()}).",
                    LARGER_BUDGET,
                )
            self._settled.wait()
        usd = price.usd(entry.prompt_tokens, expected) if price else None
        begun = entry.model_copy(update={"completion_tokens": expected, "usd": usd})
        limit = None if room is None else min(room, most or LONGEST_ANSWER)
        question = Question(begun=begun, price=price, limit=limit)
        self._write(begun)
        self._open[begun.call] = question
        return question

    def _spent_words(self) -> str:
        """Called with the lock held. Says what attempts without an answer take of the budget: it may be most of it."""
        lost = sum(one.tokens for one in self._spent if one.event == "lost")
        text = f"{sum(one.tokens for one in self._spent):,} tokens are spent"
        return f"{text}, {lost:,} of them reserved for attempts that broke off and may be billed" if lost else text

    def _room(self, price: Price | None, asked: int) -> int | None:
        """Tokens that an answer may have after a question of `asked` tokens; None without a budget."""
        rooms = []
        if self.budget.tokens is not None:
            used = sum(entry.tokens for entry in self._spent) + sum(one.reserved_tokens for one in self._open.values())
            rooms.append(self.budget.tokens - used - asked)
        if self.budget.usd is not None:
            rooms.append(self._room_usd(self.budget.usd, price, asked))
        return min(rooms, default=None)

    def _room_usd(self, budget: float, price: Price | None, asked: int) -> int:
        if price is None:
            return -1  # refused before any work; a price that is gone since then is not passed over
        used = sum(entry.usd or 0.0 for entry in self._spent) + sum(one.reserved_usd for one in self._open.values())
        left = budget - used - price.usd(asked, 0)
        if left < 0:
            return -1
        return int(left / price.usd(0, 1)) if price.output else LONGEST_ANSWER

    def _expected(self, role: Role) -> int:
        """As long as the longest answer so far in this role: the run should not end in the middle of one."""
        answers = [entry.completion_tokens for entry in self._spent if entry.event == "ended" and entry.role == role]
        return max(answers, default=0) or FIRST_ANSWER

    def _settle(
        self,
        question: Question,
        event: Literal["ended", "lost", "failed"],
        asked: int,
        answered: int,
        estimated: bool,
        seconds: float = 0.0,
    ) -> None:
        usd = question.price.usd(asked, answered) if question.price else None
        changes = {
            "event": event, "prompt_tokens": asked, "completion_tokens": answered, "usd": usd,
            "estimated": estimated, "seconds": seconds,
        }  # fmt: skip
        entry = question.begun.model_copy(update=changes)
        with self._settled:
            if self._open.pop(question.begun.call, None) is None:
                return
            self._write(entry)
            if event != "failed":
                self._spent.append(entry)
            self._settled.notify_all()

    def _take_up(self, entries: Iterable[Entry]) -> None:
        """The books of earlier processes. Nobody waits any more for answers that they had asked for."""
        asked: dict[int, Entry] = {}
        for entry in entries:
            self._next = max(self._next, entry.call + 1)
            if entry.event == "begun":
                asked[entry.call] = entry
                continue
            asked.pop(entry.call, None)
            if entry.event != "failed":
                self._spent.append(entry)
        self._spent += asked.values()

    def _write(self, entry: Entry) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(entry.model_dump_json() + "\n")
        except OSError as error:
            raise RunError(
                f"{str(self._path)!r} cannot be written ({error.strerror}).",
                "Free some space or make the run's folder writable, then resume.",
                "folder-not-writable",
            ) from error


def _read(path: Path) -> list[Entry]:
    """The entries of the file. A last line that a killed process left unfinished is taken out: its question was not
    sent, or its answer is stored nowhere and asked for again."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{str(path)!r} cannot be read: {error}.", "Check the folder.", "run-corrupt") from error
    if lines[-1]:
        write_atomically(path, "".join(f"{line}\n" for line in lines[:-1]))
    entries = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entries.append(Entry.model_validate_json(line))
        except ValidationError as error:
            raise RunError(
                f"{str(path)!r} is corrupt in line {number}.", "Mend the line, or start a new run.", "run-corrupt"
            ) from error
    return entries
