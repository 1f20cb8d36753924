"""Chats and coders over a loopback endpoint."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from htam_agent.coding.endpoint import RetryRules
from htam_agent.coding.model import ModelCoder
from htam_agent.coding.role_chat import RoleChat
from htam_agent.coding.roles import ModelChoice

KEY = "sk-never-shown-anywhere"


def choice_of(url: str, timeout: float = 10.0) -> ModelChoice:
    """A model that is asked at this address, in any role."""
    return ModelChoice(model="scripted", api_key=SecretStr(KEY), base_url=url, timeout_seconds=timeout)


def chat_of(url: str, timeout: float = 10.0, attempts: int = 2) -> RoleChat:
    """The same model in every role; failed attempts are repeated at once."""
    return RoleChat.of_one(choice_of(url, timeout), RetryRules(attempts=attempts, base_seconds=0.01, max_seconds=0.02))


def model_coder(url: str, prompts: Path | None = None) -> ModelCoder:
    """A model coder over `chat_of`."""
    return ModelCoder(chat_of(url), prompts)
