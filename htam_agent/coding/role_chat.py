"""The Chat of a run: each role's own endpoint, opened when it is first asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from htam_agent.coding.chat import ROLES, Answer, Message, Role
from htam_agent.coding.endpoint import Endpoint, RetryRules
from htam_agent.coding.roles import ModelChoice, choose_model

if TYPE_CHECKING:
    from pydantic import BaseModel

    from htam_agent.settings import Settings


class RoleChat:
    """Asks the endpoint of the role. Roles that share a model, an address and a key share a client."""

    def __init__(
        self,
        choices: dict[Role, ModelChoice],
        rules: RetryRules | None = None,
        on_retry: Callable[[str], None] | None = None,
    ) -> None:
        self.choices = choices
        self._rules = rules
        self._on_retry = on_retry
        self._endpoints: dict[Role, Endpoint] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_settings(cls, settings: Settings, on_retry: Callable[[str], None] | None = None) -> RoleChat:
        """The chat that these settings describe."""
        rules = RetryRules(attempts=settings.model_attempts, total_seconds=settings.model_total_seconds)
        return cls({role: choose_model(settings, role) for role in ROLES}, rules, on_retry)

    @classmethod
    def of_one(cls, choice: ModelChoice, rules: RetryRules | None = None) -> RoleChat:
        """The same model in every role."""
        return cls({role: choice.model_copy(update={"role": role}) for role in ROLES}, rules)

    def ask(self, role: Role, messages: Sequence[Message], schema: type[BaseModel] | None = None) -> Answer:
        """Ask the model of this role. Raises ModelError when its endpoint fails for good."""
        return self.endpoint(role).ask(messages, schema)

    def endpoint(self, role: Role) -> Endpoint:
        """The endpoint of this role."""
        with self._lock:
            if role not in self._endpoints:
                self._endpoints[role] = Endpoint(self.choices[role], self._rules, self._on_retry)
            return self._endpoints[role]
