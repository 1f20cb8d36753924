"""Opens the client of a model: any OpenAI-compatible endpoint, or a provider by LangChain's name for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from htam_agent.errors import SettingsError

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from openai import Timeout

    from htam_agent.coding.roles import ModelChoice

OPENAI = "https://api.openai.com/v1"

CONNECT_SECONDS = 10.0
"""The most that a connection may take: an address that swallows what is sent to it is told from a slow model."""


def check_choice(choice: ModelChoice) -> None:
    """What can be said without a network. Raises SettingsError when the model, the key or the address cannot be right,
    or the provider's package is not installed."""
    if not choice.bare_model.strip():
        raise SettingsError(
            "The model coder needs a model, and none is set.",
            f"Set {choice.variable('model')} to the name of a chat model, or use the template coder, which needs none.",
            "model-missing",
        )
    if choice.base_url is not None and not _is_address(choice.base_url):
        raise SettingsError(
            f"{choice.variable('base_url')} is {choice.base_url!r}, which is no http:// or https:// address.",
            f"Set {choice.variable('base_url')} to one like http://localhost:8000/v1.",
            "model-url",
        )
    if is_openai(choice):
        # Other providers have ways of their own to find a key (a variable of theirs, a cloud's login, or none at all).
        if not choice.key:
            raise SettingsError(
                f"The model coder needs an API key, and {choice.variable('api_key')} is not set.",
                f"Set {choice.variable('api_key')} (for a server of your own that checks none, any word), or use the "
                "template coder.",
                "key-missing",
            )
        return
    open_client(choice)


def is_openai(choice: ModelChoice) -> bool:
    """Whether the model is asked over OpenAI's interface."""
    return choice.provider in (None, "openai")


def open_client(choice: ModelChoice) -> BaseChatModel:
    """The client, without retries of its own: those are the endpoint's. Importing it takes a second.

    Raises SettingsError when the provider's package is missing or it refuses these settings.
    """
    return _open_openai(choice) if is_openai(choice) else _open_other(choice)


def answer_limit(choice: ModelChoice, tokens: int) -> dict[str, object]:
    """The arguments of a call that limit its answer, as this client spells them."""
    if is_openai(choice):
        # Servers of one's own and gateways know the old name; LangChain turns it into the new one for OpenAI.
        return {"extra_body": {"max_tokens": tokens}} if choice.base_url else {"max_tokens": tokens}
    if choice.provider == "ollama":
        options: dict[str, object] = {"num_predict": tokens}
        return {"options": options | ({} if choice.temperature is None else {"temperature": choice.temperature})}
    return {"max_output_tokens" if str(choice.provider).startswith("google") else "max_tokens": tokens}


def _open_openai(choice: ModelChoice) -> BaseChatModel:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    return ChatOpenAI(
        model_name=choice.bare_model,
        openai_api_key=SecretStr(choice.key),
        # Said even where it is the client's own default: OPENAI_BASE_URL, which is no setting of ours, would change it,
        # and the key goes where the settings say.
        openai_api_base=choice.base_url or OPENAI,
        request_timeout=_time_limits(choice.timeout_seconds),
        temperature=choice.temperature,
        max_retries=0,
        # A server of one's own speaks chat completions whatever its model is called.
        use_responses_api=False if choice.base_url else None,
    )


@functools.cache
def _time_limits(seconds: float) -> Timeout:
    """Seconds for a read, and fewer for the connection. LangChain keeps one HTTP client for each address and limit, for
    which the limit must have a hash; clients that nobody keeps are closed late, by the garbage collector."""
    from openai import Timeout  # of the HTTP library that the client uses, whichever that is

    class Hashed(Timeout):
        def __hash__(self) -> int:
            return hash((self.connect, self.read))

    return Hashed(seconds, connect=min(CONNECT_SECONDS, seconds / 3))


def _open_other(choice: ModelChoice) -> BaseChatModel:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise _not_installed(choice, "langchain", error) from error
    given: dict[str, object] = {
        "timeout": choice.timeout_seconds,
        "max_retries": 0,
        "temperature": choice.temperature,
        "base_url": choice.base_url,
        "api_key": choice.key or None,
    }
    try:
        make: Callable[..., BaseChatModel] = init_chat_model
        wanted = {name: value for name, value in given.items() if value is not None}
        return make(choice.bare_model, model_provider=choice.provider, **wanted)
    except ImportError as error:
        raise _not_installed(choice, f"langchain-{str(choice.provider).split('_')[0]}", error) from error
    except (TypeError, ValueError) as error:
        detail = " ".join(str(error).replace(choice.key or "\0", "***").split())[:300]
        raise SettingsError(
            f"The provider {choice.provider} does not take these settings: {detail}.",
            f"Check {choice.variable('model')}, {choice.variable('api_key')} and {choice.variable('base_url')}.",
            "model-provider",
        ) from error


def _not_installed(choice: ModelChoice, package: str, error: ImportError) -> SettingsError:
    return SettingsError(
        f"{choice.variable('model')} is {choice.model!r}, and a package of its provider is missing ({error}).",
        f"Install it (`pip install langchain {package}`), or set a base URL and the model's plain name.",
        "model-provider",
    )


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
