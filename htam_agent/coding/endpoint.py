"""Calls to an OpenAI-compatible chat endpoint: one layer of retries, errors in words, tokens counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from pydantic import Field, SecretStr

from htam_agent.errors import ModelError
from htam_agent.words import Record

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_openai import ChatOpenAI
    from tenacity import RetryCallState

RETRIED_STATUS = (408, 409, 429)
"""Besides every 5xx. 400, 401, 403, 404 and the rest say that the request is wrong: again would be wrong again."""


class RetryRules(Record):
    """`attempts` in all, the first included; waits grow from `base_seconds` by powers of two, with jitter, up to
    `max_seconds`. A server's Retry-After is honoured up to `retry_after_seconds`; beyond that the call fails."""

    attempts: int = Field(5, ge=1)
    base_seconds: float = Field(1.0, ge=0.0)
    max_seconds: float = Field(60.0, ge=0.0)
    retry_after_seconds: float = Field(300.0, ge=0.0)


class Answer(Record):
    """What the model said. Tokens are the server's count, or an estimate of a quarter of the characters, marked."""

    text: str
    cut_off: bool = False
    prompt_tokens: int
    completion_tokens: int
    estimated: bool = False
    seconds: float = 0.0


class Endpoint:
    """One model at one base URL. The client is made at the first call (its import takes a second)."""

    def __init__(
        self,
        model: str,
        api_key: SecretStr,
        base_url: str | None = None,
        timeout_seconds: float = 300.0,
        rules: RetryRules | None = None,
        on_retry: Callable[[str], None] | None = None,
    ) -> None:
        self.model = model
        self.base_url = base_url
        self.timeout_seconds = timeout_seconds
        self.rules = rules if rules is not None else RetryRules()
        self._api_key = api_key
        self._on_retry = on_retry
        self._client: ChatOpenAI | None = None

    def ask(self, messages: Sequence[tuple[str, str]]) -> Answer:
        """Send (role, text) pairs, with roles `system`, `human` and `ai`.

        Raises ModelError when the endpoint fails for good.
        """
        from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

        kinds: dict[str, type[BaseMessage]] = {"system": SystemMessage, "human": HumanMessage, "ai": AIMessage}
        prepared = [kinds[role](content=text) for role, text in messages]
        started = time.monotonic()
        message = self._invoke(prepared)
        text = message.text
        usage = message.usage_metadata
        characters = sum(len(content) for _, content in messages)
        counted = usage is not None and usage["input_tokens"] + usage["output_tokens"] > 0
        return Answer(
            text=text,
            cut_off=message.response_metadata.get("finish_reason") == "length",
            prompt_tokens=usage["input_tokens"] if counted and usage else characters // 4,
            completion_tokens=usage["output_tokens"] if counted and usage else len(text) // 4,
            estimated=not counted,
            seconds=time.monotonic() - started,
        )

    def _invoke(self, messages: list[BaseMessage]) -> AIMessage:
        import openai
        from tenacity import Retrying, retry_if_exception, stop_after_attempt

        client = self._open()
        retrying = Retrying(
            stop=stop_after_attempt(self.rules.attempts),
            wait=self._wait,
            retry=retry_if_exception(self._is_retried),
            before_sleep=self._report,
            reraise=True,
        )
        try:
            return retrying(client.invoke, messages)
        except openai.OpenAIError as error:
            raise self._model_error(error) from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # The client trips over a body that is no chat completion (a web page, for example) in ways of its own.
            raise ModelError(
                f"{self._where()} answered something that is not a chat completion ({type(error).__name__}: "
                f"{self._clean(str(error))}).",
                "Check HTAM_BASE_URL: it mostly ends in /v1.",
                "model-answer",
            ) from error

    def _open(self) -> ChatOpenAI:
        if self._client is None:
            from langchain_openai import ChatOpenAI

            # The one layer of retries is ours, so the client's own is off. A server of one's own speaks chat
            # completions whatever its model is called.
            self._client = ChatOpenAI(
                model_name=self.model,
                openai_api_key=self._api_key,
                openai_api_base=self.base_url,
                request_timeout=self.timeout_seconds,
                max_retries=0,
                use_responses_api=False if self.base_url else None,
            )
        return self._client

    def _is_retried(self, error: BaseException) -> bool:
        import openai

        if isinstance(error, openai.APIStatusError):
            wait = retry_after(error.response.headers.get("retry-after"))
            if wait is not None and wait > self.rules.retry_after_seconds:
                return False
            return error.status_code in RETRIED_STATUS or error.status_code >= 500
        return isinstance(error, openai.APIConnectionError)

    def _wait(self, state: RetryCallState) -> float:
        from tenacity import wait_random_exponential

        asked = retry_after(_header(state.outcome.exception() if state.outcome else None))
        if asked is not None:
            return asked
        return wait_random_exponential(multiplier=self.rules.base_seconds, max=self.rules.max_seconds)(state)

    def _report(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if self._on_retry is not None:
            self._on_retry(f"{self._where()}: {self._clean(str(error))}; attempt {state.attempt_number} failed")

    def _model_error(self, error: Exception) -> ModelError:
        import openai

        if isinstance(error, openai.APITimeoutError):
            return ModelError(
                f"{self._where()} did not answer within {self.timeout_seconds:g} s ({self.rules.attempts} attempts).",
                "Raise HTAM_MODEL_TIMEOUT_SECONDS, or use a faster model.",
                "model-timeout",
            )
        if isinstance(error, openai.APIStatusError):
            text = self._clean(error.message)
            remedy, code = _REMEDIES.get(error.status_code, ("Try again later, or use another endpoint.", "model"))
            return ModelError(f"{self._where()} answered {error.status_code}: {text}.", remedy, code)
        if isinstance(error, openai.APIConnectionError):
            cause = error.__cause__ or error
            return ModelError(
                f"{self._where()} cannot be reached ({type(cause).__name__}: {self._clean(str(cause))}).",
                "Check HTAM_BASE_URL and the network.",
                "model-unreachable",
            )
        return ModelError(
            f"{self._where()} failed: {self._clean(str(error))}.", "Check HTAM_MODEL and HTAM_BASE_URL.", "model"
        )

    def _where(self) -> str:
        return f"The model endpoint {self.base_url or 'of OpenAI'} ({self.model})"

    def _clean(self, text: str) -> str:
        """Short, on one line, and never with the key (some servers repeat it)."""
        secret = self._api_key.get_secret_value()
        hidden = text.replace(secret, "***") if secret else text
        return " ".join(hidden.split())[:300].rstrip(".")


_REMEDIES: dict[int, tuple[str, str]] = {
    400: (
        "The endpoint refuses the request: check that HTAM_MODEL takes chat messages of this length.",
        "model-refused",
    ),
    401: ("Check HTAM_API_KEY.", "model-key"),
    403: ("Check that the key in HTAM_API_KEY may use HTAM_MODEL.", "model-key"),
    404: ("Check HTAM_MODEL, and HTAM_BASE_URL, which mostly ends in /v1.", "model-missing"),
    413: ("The prompt is too long for this endpoint: choose another HTAM_MODEL.", "model-refused"),
    429: ("The endpoint limits the rate: wait, or raise the limit of the key in HTAM_API_KEY.", "model-rate"),
}


def _header(error: BaseException | None) -> str | None:
    import openai

    if not isinstance(error, openai.APIStatusError):
        return None
    value: str | None = error.response.headers.get("retry-after")
    return value


def retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header (RFC 9110: seconds or an HTTP date); None when absent or unreadable."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if seconds < float("inf") else None
