"""The Chat of a run: each role's own endpoint, opened when it is first asked; every attempt is put down in the books of
the run that asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from htam_agent.coding.chat import ROLES, Answer, Message, Role
from htam_agent.coding.endpoint import Books, Endpoint, NoBooks, OutOfTime, RetryRules, size_of
from htam_agent.coding.recording import Recorder, Replayer
from htam_agent.coding.roles import ModelChoice, choose_model
from htam_agent.coding.scope import Scope, current_scope
from htam_agent.errors import BudgetSpent, ModelError, SettingsError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from htam_agent.coding.ledger import Question
    from htam_agent.settings import Settings


class RoleChat:
    """Asks the endpoint of the role."""

    def __init__(
        self,
        choices: dict[Role, ModelChoice],
        rules: RetryRules | None = None,
        on_retry: Callable[[str], None] | None = None,
        recorder: Recorder | None = None,
        replayer: Replayer | None = None,
    ) -> None:
        """`recorder` keeps every exchange; with `replayer` nothing is sent, and its answers are given."""
        self.choices = choices
        self._recorder = recorder
        self._replayer = replayer
        self._rules = rules
        self._on_retry = on_retry
        self._endpoints: dict[Role, Endpoint] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        seed: int = 0,
        on_retry: Callable[[str], None] | None = None,
        resumed: bool = False,
    ) -> RoleChat:
        """The chat that these settings describe; `seed` is the run's. Raises SettingsError when the folder of a
        recording does not fit."""
        if settings.record is not None and settings.replay is not None:
            raise SettingsError(
                "Both record and replay are set.", "A replayed run is a recording already: leave out one of them."
            )
        choices = {role: choose_model(settings, role) for role in ROLES}
        secrets = [choice.key for choice in choices.values()]
        return cls(
            choices,
            RetryRules(attempts=settings.model_attempts, total_seconds=settings.model_total_seconds),
            on_retry,
            Recorder(settings.record, seed, secrets, resumed) if settings.record is not None else None,
            Replayer(settings.replay) if settings.replay is not None else None,
        )

    @classmethod
    def of_one(cls, choice: ModelChoice, rules: RetryRules | None = None) -> RoleChat:
        """The same model in every role."""
        return cls({role: choice.model_copy(update={"role": role}) for role in ROLES}, rules)

    def ask(self, role: Role, messages: Sequence[Message], schema: type[BaseModel] | None = None) -> Answer:
        """Ask the model of this role.

        Raises ModelError when its endpoint fails for good, BudgetSpent when the question could cost more than the run
        may still spend, or the run's time is up.
        """
        scope = current_scope()
        books = RunBooks(scope, self.choices[role]) if scope is not None else NoBooks()
        left = _time_left(scope) if scope is not None else None
        if self._replayer is not None:
            return self._replayed(self._replayer, scope, books, role, messages, schema)
        if self._recorder is not None:
            self._recorder.claim(scope)
        try:
            answer = self.endpoint(role).ask(messages, schema, books, left)
        except OutOfTime as error:
            raise _time_is_up(f" It does not reach to another attempt: {error.message}") from error
        except ModelError as error:
            if scope is not None and error.code == "model-timeout" and _is_up(scope):
                raise _time_is_up() from error
            raise
        if self._recorder is not None:
            self._recorder.keep(scope, role, self.choices[role].bare_model, messages, schema, answer)
        return answer

    def _replayed(
        self,
        replayer: Replayer,
        scope: Scope | None,
        books: Books,
        role: Role,
        messages: Sequence[Message],
        schema: type[BaseModel] | None,
    ) -> Answer:
        """The recorded answer. It counts as it did when it was recorded, so that the budget ends the run as then."""
        books.begin(sum(size_of(text) for _, text in messages), self.choices[role].max_answer_tokens)
        try:
            answer = replayer.answer(scope, role, messages, schema)
        except BaseException:
            books.fail(billed=False)
            raise
        books.end(answer)
        return answer

    def endpoint(self, role: Role) -> Endpoint:
        """The endpoint of this role."""
        with self._lock:
            if role not in self._endpoints:
                self._endpoints[role] = Endpoint(self.choices[role], self._rules, self._tell)
            return self._endpoints[role]

    def _tell(self, text: str) -> None:
        """To whoever asks now, else to whoever opened the chat."""
        scope = current_scope()
        tell = scope.tell if scope is not None and scope.tell is not None else self._on_retry
        if tell is not None:
            tell(text)


class RunBooks:
    """Puts the attempts of one question down in the ledger of the run that asks."""

    def __init__(self, scope: Scope, choice: ModelChoice) -> None:
        self._scope = scope
        self._choice = choice
        self._question: Question | None = None

    def begin(self, size: int, most: int | None) -> int | None:
        self._scope.asked.set()
        choice = self._choice.model_copy(update={"max_answer_tokens": most})
        self._question = self._scope.ledger.begin(choice, self._scope.step, size)
        return most if self._question.limit is None else self._question.limit

    def end(self, answer: Answer) -> None:
        if self._question is not None:
            self._scope.ledger.end(self._question, answer)

    def fail(self, billed: bool) -> None:
        if self._question is None:
            return
        if billed:
            self._scope.ledger.lose(self._question)
        else:
            self._scope.ledger.fail(self._question)


def _time_left(scope: Scope) -> float | None:
    if scope.deadline is None:
        return None
    if _is_up(scope):
        raise _time_is_up()
    return scope.deadline - time.monotonic()


def _is_up(scope: Scope) -> bool:
    return scope.deadline is not None and time.monotonic() >= scope.deadline


def _time_is_up(detail: str = "") -> BudgetSpent:
    return BudgetSpent(
        f"The run's time is up.{detail}", "Go on with a larger limit: htam resume --max-seconds.", "time-is-up"
    )
