"""The settings of the chat models: general ones, and the same once more for each role, which win for that role."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings


class ModelFields(BaseSettings):
    """What a model coder and a model director ask, and what that may cost. Times are in seconds."""

    model: str | None = Field(
        None,
        description="Name of the chat model, as its endpoint knows it; or provider:model, if its package is there.",
    )
    base_url: str | None = Field(None, description="OpenAI-compatible endpoint; unset: the client's default.")
    api_key: SecretStr | None = Field(None, description="Key of the endpoint. Never logged, stored or shown.")
    temperature: float | None = Field(None, ge=0, le=2, description="Of the model's sampling; unset: its own default.")
    max_answer_tokens: int | None = Field(
        None, ge=1, description="Length limit of one answer, thinking included; unset: the endpoint's own."
    )
    model_timeout_seconds: float = Field(900.0, gt=0, description="Time limit of one attempt at one answer.")
    model_total_seconds: float = Field(
        3600.0, gt=0, description="Time limit of one answer with all its attempts and the waits between them."
    )
    model_attempts: int = Field(6, ge=1, le=100, description="Attempts at one answer where the endpoint fails.")
    preflight: bool = Field(
        True, description="Ask each model one short question before any work: finds a wrong key, model or address."
    )
    max_cost: float | None = Field(
        None, gt=0, description="US dollars that the models of a run may cost; the run stops before it costs more."
    )
    max_tokens: int | None = Field(
        None, gt=0, description="Tokens that the models of a run may take, in and out; it stops before it takes more."
    )
    prices: Path | None = Field(None, description="Your price table (TOML), which wins over the shipped one.")
    record: Path | None = Field(None, description="Folder that keeps every exchange with a model, without the key.")
    replay: Path | None = Field(
        None, description="Folder of a recorded run: its answers are given again, and nothing is sent."
    )

    direct_model: str | None = Field(None, description="Model that chooses a direction; unset: HTAM_MODEL.")
    direct_base_url: str | None = Field(None, description="Its endpoint; unset: HTAM_BASE_URL.")
    direct_api_key: SecretStr | None = Field(
        None, description="Its key; unset: HTAM_API_KEY, if the endpoint is the general one."
    )
    direct_temperature: float | None = Field(None, ge=0, le=2, description="Its temperature; unset: HTAM_TEMPERATURE.")
    direct_max_answer_tokens: int | None = Field(None, ge=1, description="Unset: HTAM_MAX_ANSWER_TOKENS.")
    direct_timeout_seconds: float | None = Field(None, gt=0, description="Unset: HTAM_MODEL_TIMEOUT_SECONDS.")

    code_model: str | None = Field(None, description="Model that writes kernels; unset: HTAM_MODEL.")
    code_base_url: str | None = Field(None, description="Its endpoint; unset: HTAM_BASE_URL.")
    code_api_key: SecretStr | None = Field(
        None, description="Its key; unset: HTAM_API_KEY, if the endpoint is the general one."
    )
    code_temperature: float | None = Field(None, ge=0, le=2, description="Its temperature; unset: HTAM_TEMPERATURE.")
    code_max_answer_tokens: int | None = Field(None, ge=1, description="Unset: HTAM_MAX_ANSWER_TOKENS.")
    code_timeout_seconds: float | None = Field(None, gt=0, description="Unset: HTAM_MODEL_TIMEOUT_SECONDS.")

    repair_model: str | None = Field(None, description="Model that mends kernels; unset: HTAM_MODEL.")
    repair_base_url: str | None = Field(None, description="Its endpoint; unset: HTAM_BASE_URL.")
    repair_api_key: SecretStr | None = Field(
        None, description="Its key; unset: HTAM_API_KEY, if the endpoint is the general one."
    )
    repair_temperature: float | None = Field(None, ge=0, le=2, description="Its temperature; unset: HTAM_TEMPERATURE.")
    repair_max_answer_tokens: int | None = Field(None, ge=1, description="Unset: HTAM_MAX_ANSWER_TOKENS.")
    repair_timeout_seconds: float | None = Field(None, gt=0, description="Unset: HTAM_MODEL_TIMEOUT_SECONDS.")

    reflect_model: str | None = Field(None, description="Model that says what was learned; unset: HTAM_MODEL.")
    reflect_base_url: str | None = Field(None, description="Its endpoint; unset: HTAM_BASE_URL.")
    reflect_api_key: SecretStr | None = Field(
        None, description="Its key; unset: HTAM_API_KEY, if the endpoint is the general one."
    )
    reflect_temperature: float | None = Field(None, ge=0, le=2, description="Its temperature; unset: HTAM_TEMPERATURE.")
    reflect_max_answer_tokens: int | None = Field(None, ge=1, description="Unset: HTAM_MAX_ANSWER_TOKENS.")
    reflect_timeout_seconds: float | None = Field(None, gt=0, description="Unset: HTAM_MODEL_TIMEOUT_SECONDS.")
