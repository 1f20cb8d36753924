"""What went wrong in a call to a chat model: told from the exception, whichever client raised it.

The clients of OpenAI, Anthropic and others raise classes of their own. What they share is read: a `status_code`, the
`response` with its headers, the names of their base classes, and the exceptions of the HTTP library below them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

from htam_agent.coding.roles import ModelChoice
from htam_agent.errors import ModelError
from htam_agent.plain_text import plain_line, plain_whole
from htam_agent.words import Record

RETRIED_STATUS = (408, 409, 429)
"""Besides every 5xx but 501. 400, 401, 403, 404 and the rest say that the request is wrong: again would not help."""
NOT_IMPLEMENTED = 501

TIMEOUTS = frozenset({"APITimeoutError", "TimeoutException", "TimeoutError"})
CONNECTIONS = frozenset({"APIConnectionError", "TransportError", "ConnectionError", "ProtocolError"})
UNSENT = frozenset({"ConnectError", "ConnectTimeout", "ConnectionRefusedError", "gaierror"})
"""Nobody took the question."""
CUT = frozenset({"JSONDecodeError", "DecodingError"})
"""A body that breaks off in the middle of its JSON."""


class Fault(Record):
    """One failed attempt. `kind`: the endpoint answered an error; no answer in time; no connection, or one that broke
    off; a body that is no whole JSON; a whole answer that is no chat completion."""

    kind: Literal["status", "timeout", "connection", "cut", "answer"]
    text: str
    status: int | None = None
    retry_after: float | None = None
    """Seconds that the server asks to wait."""
    billed: bool = False
    """The model may have worked on the question, and the work may be billed."""

    @property
    def passing(self) -> bool:
        """Whether another attempt may go better."""
        if self.status is not None:
            return self.status in RETRIED_STATUS or (self.status >= 500 and self.status != NOT_IMPLEMENTED)
        return self.kind in ("timeout", "connection", "cut")


def fault_of(error: BaseException, secret: str = "") -> Fault:
    """The fault behind an exception of any client; `secret` is struck out of its text."""
    names = {kind.__name__ for raised in _chain(error) for kind in type(raised).__mro__}
    status = getattr(error, "status_code", None)
    text = clean(str(getattr(error, "message", "") or error) or type(error).__name__, secret)
    if isinstance(status, int) and status >= 300:
        text = text.removeprefix(f"Error code: {status} - ")
        return Fault(kind="status", status=status, text=text, retry_after=retry_after(_header(error, "retry-after")))
    told = _told(error)
    if told is not None:
        return Fault(kind="status", status=told[0], text=clean(told[1], secret))
    sent = not names & UNSENT
    if names & TIMEOUTS and sent:
        return Fault(kind="timeout", text=text, billed=sent)
    # A connection that nobody takes in time is an address where nobody is.
    if names & (CONNECTIONS | UNSENT):
        return Fault(kind="connection", text=_innermost(error, secret), billed=sent)
    if names & CUT:
        return Fault(kind="cut", text=f"{text}{_what_came(error, text)}", billed=True)
    return Fault(kind="answer", text=f"{type(error).__name__}: {text}{_what_came(error, text)}", billed=True)


def model_error(fault: Fault, choice: ModelChoice, attempts: int) -> ModelError:
    """The sentence for an endpoint that failed for good, with the setting to look at."""
    where = f"The model endpoint {where_is(choice)}"
    if fault.kind == "timeout":
        return ModelError(
            f"{where} did not answer within {choice.timeout_seconds:g} s ({attempts} attempts).",
            f"Raise {choice.variable('timeout_seconds')}, or use a faster model.",
            "model-timeout",
        )
    if fault.status is not None:
        remedy, code = _remedy(fault.status, choice)
        return ModelError(f"{where} answered {fault.status}: {fault.text}.", remedy, code)
    if fault.kind == "connection":
        return ModelError(
            f"{where} cannot be reached, or broke off ({fault.text}; {attempts} attempts).",
            f"Check {choice.variable('base_url')} and the network.",
            "model-unreachable",
        )
    return ModelError(
        f"{where} answered something that is not a chat completion ({fault.text}).",
        f"Check {choice.variable('base_url')}: it mostly ends in /v1.",
        "model-answer",
    )


def where_is(choice: ModelChoice) -> str:
    """The endpoint in words, for messages: never with a password of its address."""
    address = choice.base_url or f"of {choice.provider or 'openai'}"
    if "@" in address:
        scheme, _, rest = address.partition("://")
        address = f"{scheme}://{rest.rpartition('@')[2]}"
    return f"{address.partition('?')[0]} ({choice.bare_model})"


def clean(text: str, secret: str = "") -> str:
    """Short, on one line, without terminal sequences, and never with the key (some servers repeat it)."""
    readable = plain_whole(text)
    return plain_line(readable.replace(secret, "***") if secret else readable, 300).rstrip(".")


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


def _remedy(status: int, choice: ModelChoice) -> tuple[str, str]:
    model, key, address = (choice.variable(name) for name in ("model", "api_key", "base_url"))
    limit = choice.variable("max_answer_tokens")
    known = {
        400: (
            f"The endpoint refuses the request: check that {model} takes chat messages of this length, and answers of "
            f"as many tokens as {limit} says (under a budget: set it).",
            "model-refused",
        ),
        401: (f"Check {key}.", "model-key"),
        402: (f"The account of the key in {key} has no credit left.", "model-key"),
        403: (f"Check that the key in {key} may use {model}.", "model-key"),
        404: (f"Check {model}, and {address}, which mostly ends in /v1.", "model-missing"),
        413: (f"The prompt is too long for this endpoint: choose another {model}.", "model-refused"),
        429: (f"The endpoint limits the rate: wait, or raise the limit of the key in {key}.", "model-rate"),
    }
    return known.get(status, (f"Try again later, or use another endpoint ({address}).", "model"))


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and what caused it."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


def _told(error: BaseException) -> tuple[int, str] | None:
    """The status and words of an error that a gateway put into the body of a 200; None where there is none."""
    body = error.args[0] if isinstance(error, ValueError) and error.args else None
    if not isinstance(body, dict):
        return None
    code = body.get("code", body.get("status"))
    status = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isascii() and code.isdigit()) else 0
    return (status, str(body.get("message") or body)) if 400 <= status < 600 else None


def _innermost(error: BaseException, secret: str) -> str:
    """The cause at the bottom says most: "Connection refused" instead of "Connection error"."""
    cause = next((raised for raised in reversed(_chain(error)) if str(raised)), error)
    return f"{type(cause).__name__}: {clean(str(cause), secret)}"


def _header(error: BaseException, name: str) -> str | None:
    headers = getattr(getattr(error, "response", None), "headers", None)
    value = headers.get(name) if headers is not None else None
    return value if isinstance(value, str) else None


def _what_came(error: BaseException, text: str) -> str:
    """What came instead of a chat completion: by its content type where the client kept it, else by its beginning."""
    kind = _header(error, "content-type") or ""
    if kind.startswith("text/event-stream") or re.search(r"['\"](?:data|event): ", text):
        return "; it is a stream though none was asked for"
    if kind.startswith("text/html") or re.search(r"<(?:!doctype|html)", text, re.IGNORECASE):
        return "; it is a web page"
    return f"; its content type is {kind}" if kind and not kind.startswith("application/json") else ""
