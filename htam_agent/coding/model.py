"""The model coder: a chat model writes candidates, and mends them from evidence."""

from __future__ import annotations

import re
from pathlib import Path

from htam_agent.coding.assembly import assemble, without_launcher
from htam_agent.coding.base import Code, CodeRequest, RepairRequest
from htam_agent.coding.chat import Answer, Chat, Message, Role
from htam_agent.coding.parsing import MOST_FILE, Parsed, parse_answers
from htam_agent.coding.plan import Plan
from htam_agent.coding.prompting import Prompts, fenced
from htam_agent.coding.values import code_values, common_values, no_file_values, repair_values
from htam_agent.errors import ModelError
from htam_agent.operator import OperatorProfile
from htam_agent.words import Backend

ASKS = 3
"""Answers that are asked for at most before a step is refused: a first one, and two after answers without a file."""

FREE = "model-free"
"""Strategy of a candidate that follows none of those offered."""

SHOWN_CHARACTERS = 20_000
"""Of an answer without a file, as it is sent back to the model: its beginning and its end."""

STRATEGY_CHARACTERS = 80
"""Of a strategy's name that the model made up."""

_TOO_LONG = re.compile(
    r"context[ _-]?(?:length|window|size)|(?:prompt|input|request|messages?) (?:is |are )?too (?:long|large)"
    r"|too many (?:input |prompt )?tokens|answered 413",
    re.IGNORECASE,
)
"""What endpoints say of a conversation that is longer than their model's context."""


class ModelCoder:
    """Coder over a Chat: the role `code` writes, the role `repair` mends. Each call is a conversation of its own;
    nothing is kept between. `prompts` is the user's folder of prompts."""

    name = "model"

    def __init__(self, chat: Chat, prompts: Path | None = None) -> None:
        self._chat = chat
        self._prompts_folder = prompts
        self._prompts: Prompts | None = None

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
        base = without_launcher(request.best.source, request.backend) if request.best is not None else ""
        return self._converse("code", request, self._opening(request), base)

    def repair(self, request: RepairRequest) -> Code:
        """Show the failed source with its evidence and ask for a mended one. Raises as `generate` does."""
        asked = request.request
        question = self.prompts().render("repair", repair_values(request))
        failed = without_launcher(request.source, asked.backend)
        if len(failed) > MOST_FILE:
            problem = f"the file to mend has {len(failed)} characters, more than the {MOST_FILE} that a model is shown"
            return self._code(asked, [], Parsed(problem=problem))
        messages = [*self._opening(asked), ("ai", fenced(failed, "python")), ("human", question)]
        return self._converse("repair", asked, messages, failed, fallback=request.tried[-1] if request.tried else "")

    def _opening(self, request: CodeRequest) -> list[Message]:
        prompts = self.prompts()
        return [
            ("system", prompts.render("system", common_values(request))),
            ("human", prompts.render("code", code_values(request))),
        ]

    def _converse(
        self, role: Role, request: CodeRequest, messages: list[Message], base: str, fallback: str = ""
    ) -> Code:
        """Ask until an answer holds a file, at most ASKS times; the tokens of all answers are counted. `base`: the file
        that the model was shown, which an answer may change in part."""
        answers: list[Answer] = []
        problem = ""
        for _ in range(ASKS):
            try:
                answer = self._chat.ask(role, messages)
            except ModelError as error:
                # The first question of a step is the settings' fault; what came on top of it is this candidate's.
                if (role == "code" and not answers) or not _is_too_long(error):
                    raise
                return self._code(request, answers, Parsed(problem=f"the conversation is too long: {error.message}"))
            answers.append(answer)
            parsed = parse_answers([(one.text, one.cut_off) for one in answers], request.backend, base)
            if parsed.source:
                return self._code(request, answers, parsed, fallback)
            problem = f"The model refused: {answer.refused}." if answer.refused else parsed.problem
            values = no_file_values(request, problem, len(answers), parsed.ending)
            said = _shortened(answer.text) or "(empty)"
            messages = [*messages, ("ai", said), ("human", self.prompts().render("repair", values))]
        return self._code(request, answers, Parsed(problem=problem), fallback)

    def _code(self, request: CodeRequest, answers: list[Answer], parsed: Parsed, fallback: str = "") -> Code:
        known = {scored.strategy.id for scored in request.strategies}
        named = parsed.strategy if parsed.strategy in known else ""
        other = parsed.strategy and not named and parsed.strategy != "none"
        unknown = f"names a strategy that was not offered: {parsed.strategy[:STRATEGY_CHARACTERS]}" if other else ""
        return Code(
            source=assemble(parsed.source, request.backend) if parsed.source else "",
            # An answer that names no strategy is not credited to one that it may not have used.
            strategy=(named or fallback or FREE) if parsed.source else "",
            note="; ".join(filter(None, (unknown, parsed.note))),
            refusal=""
            if parsed.source
            else f"the model gave no usable file in {len(answers)} answers: {parsed.problem}",
            prompt_tokens=sum(answer.prompt_tokens for answer in answers),
            completion_tokens=sum(answer.completion_tokens for answer in answers),
            tokens_estimated=any(answer.estimated for answer in answers),
            seconds=sum(answer.seconds for answer in answers),
        )


def _is_too_long(error: ModelError) -> bool:
    return error.code == "model-refused" and _TOO_LONG.search(error.message) is not None


def _shortened(text: str) -> str:
    """A text without a file may be a megabyte of prose: sent back whole, it would fill the model's context."""
    half = SHOWN_CHARACTERS // 2
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:half]}\n[shortened]\n{text[-half:]}"
