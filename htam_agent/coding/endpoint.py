"""Calls to one chat model: one layer of retries, time limits that hold, tokens counted, objects asked for."""

from __future__ import annotations

import contextvars
import functools
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from pydantic import BaseModel, Field

from htam_agent.coding.chat import Answer, Message
from htam_agent.coding.faults import Fault, clean, fault_of, model_error, where_is
from htam_agent.coding.providers import answer_limit, is_openai, open_client
from htam_agent.coding.redaction import redacted
from htam_agent.coding.roles import ModelChoice
from htam_agent.coding.structured import parse_object, response_format, with_instruction
from htam_agent.errors import HtamError, ModelError
from htam_agent.words import Record

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage
    from tenacity import RetryCallState

T = TypeVar("T")

CHARACTERS_A_TOKEN = 4
"""For tokens that a server does not count: about right for English prose, too low for code."""

WITHOUT_STRUCTURE = (400, 404, 415, 422, 501)
"""Answers of endpoints that do not know the `response_format` of a request."""
SHORTEST_LIMIT = 256
"""Tokens: an endpoint that refuses even such an answer refuses something else."""
ABOUT_LIMIT = re.compile(
    r"max_?(?:completion_?|output_?|new_?)?tokens|(?:completion|output) tokens|in the completion|num_predict",
    re.IGNORECASE,
)
"""What a refusal says that is about the limit of the answer."""


class RetryRules(Record):
    """`attempts` in all, the first included; waits grow from `base_seconds` by powers of two, with jitter, up to
    `max_seconds`. A server's Retry-After is honoured up to `retry_after_seconds`; beyond that the call fails. No
    attempt begins when its wait would pass `total_seconds` since the first one began."""

    attempts: int = Field(6, ge=1)
    base_seconds: float = Field(1.0, ge=0.0)
    max_seconds: float = Field(60.0, ge=0.0)
    retry_after_seconds: float = Field(300.0, ge=0.0)
    total_seconds: float = Field(3600.0, gt=0.0)


class OutOfTime(ModelError):
    """The time that the asker gave ended before the next attempt could begin."""


class Books(Protocol):
    """Where the attempts of one question are put down (ledger.py)."""

    def begin(self, size: int, most: int | None) -> int | None:
        """Before an attempt of so many bytes: the most tokens that its answer may have, `most` at most, or None.
        Raises BudgetSpent."""
        ...

    def end(self, answer: Answer) -> None:
        """The attempt was answered."""
        ...

    def fail(self, billed: bool) -> None:
        """It was not; `billed`: the model may have worked on it."""
        ...


class NoBooks:
    """Nobody counts."""

    def begin(self, size: int, most: int | None) -> int | None:
        return most

    def end(self, answer: Answer) -> None: ...

    def fail(self, billed: bool) -> None: ...


class Endpoint:
    """One model at one address. The client is made at the first call (its import takes a second)."""

    def __init__(
        self, choice: ModelChoice, rules: RetryRules | None = None, on_retry: Callable[[str], None] | None = None
    ) -> None:
        self.choice = choice
        self.rules = rules if rules is not None else RetryRules()
        self._on_retry = on_retry
        self._client: BaseChatModel | None = None
        self._lock = threading.Lock()
        self._has_structure = is_openai(choice)
        self._new_limit_name = False
        self._longest_answer: int | None = None

    def ask(
        self,
        messages: Sequence[Message],
        schema: type[BaseModel] | None = None,
        books: Books | None = None,
        seconds: float | None = None,
    ) -> Answer:
        """Send the messages. `seconds` is the most time that all attempts together may take, besides what the settings
        say; each attempt is put down in `books`.

        Raises ModelError when the endpoint fails for good (OutOfTime where `seconds` left no time for another attempt),
        and what the books raise.
        """
        own = seconds is None or seconds > self.rules.total_seconds
        most = self.rules.total_seconds if seconds is None else min(seconds, self.rules.total_seconds)
        call = _Call(books or NoBooks(), time.monotonic() + most, own)
        if schema is None:
            return self._answer(list(messages), call)
        first = self._structured(list(messages), schema, call) if self._has_structure else None
        if first is not None and (first.parsed is not None or first.refused or first.cut_off):
            return first
        return self._plain(list(messages), schema, call, first)

    def _plain(self, messages: list[Message], schema: type[BaseModel], call: _Call, first: Answer | None) -> Answer:
        """JSON in plain text. That structured output is of no use here is remembered only when this is better. `first`:
        an answer that ignored the schema, whose tokens count too."""
        answer = self._answer(with_instruction(messages, schema), call)
        parsed = parse_object(answer.text, schema)
        if parsed is not None and self._has_structure:
            self._has_structure = False
            self._tell(f"{where_is(self.choice)} has no structured output; JSON in plain text is asked for instead")
        changes: dict[str, object] = {"parsed": parsed, "structure": "failed" if parsed is None else "plain-json"}
        if first is not None:
            changes |= {
                "prompt_tokens": first.prompt_tokens + answer.prompt_tokens,
                "completion_tokens": first.completion_tokens + answer.completion_tokens,
                "estimated": first.estimated or answer.estimated,
                "seconds": first.seconds + answer.seconds,
            }
        return answer.model_copy(update=changes)

    def _structured(self, messages: list[Message], schema: type[BaseModel], call: _Call) -> Answer | None:
        """The answer by structured output; None where the endpoint refuses the request, perhaps because of it."""
        try:
            answer = self._answer(messages, call, {"response_format": response_format(schema)})
        except ModelError as error:
            cause = error.__cause__
            if cause is None or fault_of(cause).status not in WITHOUT_STRUCTURE:
                raise
            return None
        parsed = parse_object(answer.text, schema)
        return answer.model_copy(update={"parsed": parsed, "structure": "failed" if parsed is None else "json-schema"})

    def _answer(self, messages: list[Message], call: _Call, body: dict[str, object] | None = None) -> Answer:
        from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

        kinds: dict[str, type[BaseMessage]] = {"system": SystemMessage, "human": HumanMessage, "ai": AIMessage}
        prepared = [kinds[speaker](content=text) for speaker, text in messages]
        started = time.monotonic()
        answer = self._attempts(prepared, call, body or {})
        return answer.model_copy(update={"seconds": time.monotonic() - started})

    def _attempts(self, messages: list[BaseMessage], call: _Call, body: dict[str, object]) -> Answer:
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_any, stop_before_delay

        left = max(0.0, call.deadline - time.monotonic())
        retrying = Retrying(
            stop=stop_any(stop_after_attempt(self.rules.attempts), stop_before_delay(left)),
            wait=self._wait,
            retry=retry_if_exception(self._is_retried),
            before_sleep=self._report,
            reraise=True,
        )
        try:
            return retrying(self._attempt, messages, call, body)
        except HtamError:
            raise
        # Any client may be behind this, each with exceptions of its own; whatever they raise is the endpoint's failure.
        except Exception as error:
            attempts = int(retrying.statistics.get("attempt_number", 1))
            failure = self._failure(error, attempts)
            # Another attempt was due: what kept it from being made was the time.
            if not call.own_time and attempts < self.rules.attempts and self._is_retried(error):
                raise OutOfTime(failure.message, failure.remedy, failure.code) from error
            raise failure from error

    def _attempt(self, messages: list[BaseMessage], call: _Call, body: dict[str, object]) -> Answer:
        """One attempt, put down in the books however it ends."""
        started = time.monotonic()
        characters = sum(len(message.text) for message in messages)
        limit = call.books.begin(sum(size_of(message.text) for message in messages), self._most())
        try:
            message = self._send(messages, limit, body, call.deadline)
            answer = answer_of(message, characters, time.monotonic() - started, self.choice.key)
        except BaseException as error:
            # Who interrupts the wait does not stop the model.
            call.books.fail(not isinstance(error, Exception) or fault_of(error).billed)
            raise
        call.books.end(answer)
        return answer

    def _send(
        self, messages: list[BaseMessage], limit: int | None, body: dict[str, object], deadline: float
    ) -> AIMessage:
        """One request, which ends in time even where the server sends a byte now and then for ever."""
        from langchain_core.messages import AIMessage

        client = self.client()  # the import of a first call is not the endpoint's time
        tried = limit
        while True:
            asking = client.bind(**self._options(tried, body))
            seconds = min(self.choice.timeout_seconds, max(0.001, deadline - time.monotonic()))
            try:
                found = within(seconds, functools.partial(asking.invoke, messages))
                break
            except Exception as error:
                if self._takes_new_limit_name(error, tried):
                    continue
                smaller = self._smaller_limit(error, tried, first=tried == limit)
                if smaller is None:
                    raise
                tried = smaller
        if not isinstance(found, AIMessage):
            raise TypeError(f"an answer of type {type(found).__name__}")
        if tried is not None and tried != limit:
            self._longest_answer = tried
            self._tell(f"{where_is(self.choice)} refused a limit of {limit:,} tokens for its answer; it gets {tried:,}")
        return found

    def _most(self) -> int | None:
        """The most tokens of an answer: what the settings say, or what the endpoint was found to take."""
        return self.choice.max_answer_tokens or self._longest_answer

    def _smaller_limit(self, error: Exception, limit: int | None, first: bool) -> int | None:
        """A limit that the endpoint may take after it refused this one: the largest number of its text that is below,
        then half each time. None where the refusal is about something else, or about a limit that the user set."""
        fault = fault_of(error)
        about = fault.status in (400, 422) and ABOUT_LIMIT.search(str(error)) is not None
        if limit is None or not about or self.choice.max_answer_tokens is not None:
            return None
        told = (int(text.replace(",", "")) for text in re.findall(r"\d[\d,]{2,12}", str(error)))
        named = [number for number in told if SHORTEST_LIMIT <= number < limit] if first else []
        smaller = max(named, default=limit // 2)
        return smaller if smaller >= SHORTEST_LIMIT else None

    def _options(self, limit: int | None, body: dict[str, object]) -> dict[str, object]:
        """The arguments of a call. The body goes round LangChain's own handling of `response_format`, which raises on
        an answer that was cut off and so loses it."""
        options = dict(answer_limit(self.choice, limit)) if limit is not None else {}
        extra = options.get("extra_body")
        whole = {**(extra if isinstance(extra, dict) else {}), **body}
        if self._new_limit_name and "max_tokens" in whole:
            whole["max_completion_tokens"] = whole.pop("max_tokens")
        return {**options, "extra_body": whole} if whole else options

    def _takes_new_limit_name(self, error: Exception, limit: int | None) -> bool:
        """Whether a gateway asks for the new name of the answer's limit; from then on it gets that one."""
        body = answer_limit(self.choice, limit).get("extra_body") if limit is not None else None
        asked = "max_completion_tokens" in str(error) and getattr(error, "status_code", None) == 400
        if self._new_limit_name or not asked or not isinstance(body, dict) or "max_tokens" not in body:
            return False
        self._new_limit_name = True
        return True

    def client(self) -> BaseChatModel:
        """The client, made once. Raises SettingsError when the provider's package is missing."""
        with self._lock:
            if self._client is None:
                self._client = open_client(self.choice)
            return self._client

    def _is_retried(self, error: BaseException) -> bool:
        if not isinstance(error, Exception):
            return False
        fault = fault_of(error)
        return fault.passing and (fault.retry_after or 0.0) <= self.rules.retry_after_seconds

    def _wait(self, state: RetryCallState) -> float:
        from tenacity import wait_random_exponential

        fault = _fault(state)
        if fault is not None and fault.retry_after is not None:
            return fault.retry_after
        return wait_random_exponential(multiplier=self.rules.base_seconds, max=self.rules.max_seconds)(state)

    def _report(self, state: RetryCallState) -> None:
        fault = _fault(state, self.choice.key)
        what = fault.text if fault else ""
        if fault and fault.status:
            what = f"{fault.status} {what}"
        wait = f", the next in {state.upcoming_sleep:.1f} s" if state.upcoming_sleep else ""
        self._tell(f"{where_is(self.choice)}: {what}; attempt {state.attempt_number} failed{wait}")

    def _tell(self, text: str) -> None:
        if self._on_retry is not None:
            self._on_retry(text)

    def _failure(self, error: Exception, attempts: int) -> ModelError:
        return model_error(fault_of(error, self.choice.key), self.choice, attempts)


def size_of(text: str) -> int:
    """Bytes of UTF-8, by which room is reserved."""
    return len(text.encode("utf-8", "surrogatepass"))


class _Call:
    """One question: where its attempts are put down, and the clock's reading at which it ends."""

    def __init__(self, books: Books, deadline: float, own_time: bool) -> None:
        """`own_time`: the deadline is the rules', not the asker's."""
        self.books = books
        self.deadline = deadline
        self.own_time = own_time


def within(seconds: float, work: Callable[[], T]) -> T:
    """The answer of `work`, or TimeoutError after so many seconds: it is then left to itself in a thread that does not
    keep the process alive. A client's own time limit is one for each read and does not bound the whole."""
    answers: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the work was asked for
            failures.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="model-call", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not answers:
        raise TimeoutError(f"no whole answer within {seconds:g} s")
    return answers[0]


def answer_of(message: AIMessage, asked_characters: int, seconds: float, key: str = "") -> Answer:
    """The answer in a client's message, whatever provider it is of. Never with the key, which a gateway may repeat: the
    answer becomes a kernel, and stands in the run's folder."""
    usage = message.usage_metadata
    told_in, told_out = (usage["input_tokens"] or 0, usage["output_tokens"] or 0) if usage else (0, 0)
    counted = told_in > 0 and (told_out > 0 or not message.text)
    about = message.response_metadata
    end = about.get("finish_reason") or about.get("stop_reason") or about.get("done_reason") or about.get("status")
    refusal = message.additional_kwargs.get("refusal")
    if not refusal and end in ("content_filter", "refusal"):
        refusal = f"the endpoint ended the answer ({end})"
    return Answer(
        text=redacted(message.text, [key]),
        cut_off=end in ("length", "max_tokens", "MAX_TOKENS", "incomplete"),
        refused=clean(redacted(str(refusal), [key])) if refusal else "",
        prompt_tokens=told_in if counted else asked_characters // CHARACTERS_A_TOKEN,
        completion_tokens=told_out if counted else len(message.text) // CHARACTERS_A_TOKEN,
        estimated=not counted,
        seconds=seconds,
    )


def _fault(state: RetryCallState, key: str = "") -> Fault | None:
    error = state.outcome.exception() if state.outcome else None
    return fault_of(error, key) if error is not None else None
