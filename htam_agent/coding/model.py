"""The model coder: a chat model writes candidates, and mends them from evidence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pydantic import SecretStr

from htam_agent.coding.assembly import assemble, without_launcher
from htam_agent.coding.base import Code, CodeRequest, RepairRequest
from htam_agent.coding.endpoint import Answer, Endpoint, RetryRules
from htam_agent.coding.parsing import Parsed, parse_answer
from htam_agent.coding.plan import Plan
from htam_agent.coding.prompting import Prompts, fenced
from htam_agent.coding.values import common_values, generate_values, no_file_values, repair_values
from htam_agent.errors import SettingsError
from htam_agent.operator import OperatorProfile
from htam_agent.words import Backend

ASKS = 3
"""Answers that are asked for at most before a step is refused: a first one, and two after answers without a file."""

FREE = "model-free"
"""Strategy of a candidate that follows none of those offered."""

Message = tuple[str, str]


class ModelSettings(Protocol):
    """The settings that a model coder reads (`htam_agent.settings.Settings` has them)."""

    @property
    def model(self) -> str | None: ...
    @property
    def base_url(self) -> str | None: ...
    @property
    def api_key(self) -> SecretStr | None: ...
    @property
    def model_timeout_seconds(self) -> float: ...
    @property
    def prompts(self) -> Path | None: ...


class ModelCoder:
    """Coder over any OpenAI-compatible endpoint. Each call is a conversation of its own; nothing is kept between."""

    name = "model"

    def __init__(
        self,
        model: str | None,
        api_key: SecretStr | None,
        base_url: str | None = None,
        timeout_seconds: float = 300.0,
        prompts: Path | None = None,
        rules: RetryRules | None = None,
        on_retry: Callable[[str], None] | None = None,
    ) -> None:
        self._endpoint = Endpoint(model or "", api_key or SecretStr(""), base_url, timeout_seconds, rules, on_retry)
        self._has_key = api_key is not None and bool(api_key.get_secret_value().strip())
        self._prompts_folder = prompts
        self._prompts: Prompts | None = None

    @classmethod
    def from_settings(cls, settings: ModelSettings) -> ModelCoder:
        """A coder with HTAM_MODEL, HTAM_BASE_URL, HTAM_API_KEY, HTAM_MODEL_TIMEOUT_SECONDS and HTAM_PROMPTS."""
        return cls(
            model=settings.model,
            api_key=settings.api_key,
            base_url=settings.base_url,
            timeout_seconds=settings.model_timeout_seconds,
            prompts=settings.prompts,
        )

    def preflight(self) -> None:
        """Check, before any work and without a network, that model, key and prompts are there. Raises SettingsError."""
        if not self._endpoint.model.strip():
            raise SettingsError(
                "The model coder needs a model, and none is set.",
                "Set HTAM_MODEL to the name of a chat model, or use the template coder, which needs none.",
                "model-missing",
            )
        if not self._has_key:
            raise SettingsError(
                "The model coder needs an API key, and HTAM_API_KEY is not set.",
                "Set HTAM_API_KEY (for a server of your own that checks none, any word), or use the template coder.",
                "key-missing",
            )
        self.prompts()

    def prompts(self) -> Prompts:
        """The prompts in use. Raises SettingsError when a file does not fit."""
        if self._prompts is None:
            self._prompts = Prompts(self._prompts_folder)
        return self._prompts

    def initial_plan(self, operator: OperatorProfile, backend: Backend) -> Plan | None:
        """A model writes kernels without a plan."""
        return None

    def generate(self, request: CodeRequest) -> Code:
        """Ask for a candidate. Raises ModelError when the endpoint fails for good, SettingsError for a bad prompt."""
        return self._converse(request, self._opening(request))

    def repair(self, request: RepairRequest) -> Code:
        """Show the failed source with its evidence and ask for a mended one. Raises as `generate` does."""
        asked = request.request
        question = self.prompts().render("repair", repair_values(request))
        answer = fenced(without_launcher(request.source, asked.backend), "python")
        messages = [*self._opening(asked), ("ai", answer), ("human", question)]
        return self._converse(asked, messages, fallback=request.tried[-1] if request.tried else "")

    def _opening(self, request: CodeRequest) -> list[Message]:
        prompts = self.prompts()
        return [
            ("system", prompts.render("system", common_values(request))),
            ("human", prompts.render("generate", generate_values(request))),
        ]

    def _converse(self, request: CodeRequest, messages: list[Message], fallback: str = "") -> Code:
        """Ask until an answer holds a file, at most ASKS times; the tokens of all answers are counted."""
        answers: list[Answer] = []
        problem = ""
        for _ in range(ASKS):
            answer = self._endpoint.ask(messages)
            answers.append(answer)
            parsed = parse_answer(answer.text, request.backend, cut_off=answer.cut_off)
            if parsed.source:
                return self._code(request, answers, parsed, fallback)
            problem = parsed.problem
            values = no_file_values(request, parsed.problem, len(answers))
            messages = [*messages, ("ai", answer.text or "(empty)"), ("human", self.prompts().render("repair", values))]
        return self._code(request, answers, Parsed(problem=problem), fallback)

    def _code(self, request: CodeRequest, answers: list[Answer], parsed: Parsed, fallback: str) -> Code:
        known = {scored.strategy.id for scored in request.strategies}
        named = parsed.strategy if parsed.strategy in known else ""
        return Code(
            source=assemble(parsed.source, request.backend) if parsed.source else "",
            # An answer that names no strategy is not credited to one that it may not have used.
            strategy=(named or fallback or FREE) if parsed.source else "",
            note="" if named or not parsed.strategy else f"names a strategy that was not offered: {parsed.strategy}",
            refusal=""
            if parsed.source
            else f"the model gave no usable file in {len(answers)} answers: {parsed.problem}",
            prompt_tokens=sum(answer.prompt_tokens for answer in answers),
            completion_tokens=sum(answer.completion_tokens for answer in answers),
            tokens_estimated=any(answer.estimated for answer in answers),
            seconds=sum(answer.seconds for answer in answers),
        )
