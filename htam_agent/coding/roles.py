"""Which model a role asks: the role's own settings, and where it has none, the general ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, SecretStr

from htam_agent.coding.chat import Role
from htam_agent.words import Record

if TYPE_CHECKING:
    from htam_agent.settings import Settings

FIELDS = ("model", "base_url", "api_key", "temperature", "max_answer_tokens", "timeout_seconds")
GENERAL = {name: name for name in FIELDS} | {"timeout_seconds": "model_timeout_seconds"}
"""The general setting behind each of a role's."""

PROVIDERS = frozenset(
    {
        "anthropic", "anthropic_bedrock", "azure_ai", "azure_openai", "bedrock", "bedrock_converse", "cohere",
        "deepseek", "fireworks", "google_anthropic_vertex", "google_genai", "google_vertexai", "groq", "huggingface",
        "ibm", "litellm", "mistralai", "nvidia", "ollama", "openai", "openrouter", "perplexity", "together", "upstage",
        "xai",
    }
)  # fmt: skip
"""Names of LangChain's init_chat_model. Other words before a colon belong to the model's name (llama3:8b)."""


class ModelChoice(Record):
    """One role's model. The key is masked in every text and dump."""

    role: Role = "code"
    model: str = ""
    base_url: str | None = None
    api_key: SecretStr | None = None
    temperature: float | None = None
    max_answer_tokens: int | None = None
    timeout_seconds: float = Field(900.0, gt=0)
    variables: dict[str, str] = Field(default_factory=dict)
    """Setting -> the variable that it came from, or that would set it: what an error names."""

    @property
    def provider(self) -> str | None:
        """LangChain's name of the provider, where the model is spelled provider:model."""
        word, colon, _ = self.model.partition(":")
        return word if colon and word in PROVIDERS else None

    @property
    def bare_model(self) -> str:
        """The model's name at its provider."""
        return self.model.partition(":")[2] if self.provider else self.model

    @property
    def key(self) -> str:
        """The key in the clear, for the client alone; empty where there is none."""
        return self.api_key.get_secret_value().strip() if self.api_key is not None else ""

    @property
    def endpoint(self) -> tuple[str, str | None, str]:
        """What tells one endpoint from another: model, address and key."""
        return self.model, self.base_url, self.key

    def variable(self, setting: str) -> str:
        """ "HTAM_CODE_MODEL" or "HTAM_MODEL" for "model"."""
        return self.variables.get(setting, f"HTAM_{GENERAL[setting]}".upper())


def choose_model(settings: Settings, role: Role) -> ModelChoice:
    """The model of this role. The general key goes to the general endpoint alone: a role with an address or a provider
    of its own needs a key of its own."""
    given = {name: value for name in FIELDS if (value := getattr(settings, f"{role}_{name}")) is not None}
    general = {name: getattr(settings, GENERAL[name]) for name in FIELDS} | {"model": settings.model or ""}
    choice = ModelChoice(role=role, **{**general, **given})
    elsewhere = "base_url" in given or ("model" in given and choice.provider != _provider(settings.model))
    if elsewhere:
        choice = ModelChoice(role=role, **{**general, "api_key": None, "base_url": None, **given})
    own = {*given, *(("api_key", "base_url") if elsewhere else ())}
    variables = {
        name: f"HTAM_{role}_{name}".upper() if name in own else f"HTAM_{GENERAL[name]}".upper() for name in FIELDS
    }
    return choice.model_copy(update={"model": choice.model.strip(), "variables": variables})


def _provider(model: str | None) -> str | None:
    return ModelChoice(model=model or "").provider
