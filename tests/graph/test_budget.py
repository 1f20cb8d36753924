"""A run and what it may spend: it stops before it would spend more, keeps its best kernel, and goes on when resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from htam_agent.api import optimize, resume
from htam_agent.coding.base import Code
from htam_agent.coding.chat import Answer
from htam_agent.coding.ledger import Budget, Ledger
from htam_agent.coding.roles import ModelChoice
from htam_agent.coding.scope import Scope
from htam_agent.errors import BudgetSpent, ModelError, SettingsError
from htam_agent.graph.asking import count_foreign
from htam_agent.graph.events import Event
from htam_agent.runs.records import Result
from tests.support.endpoint import Reply, failure, scripted
from tests.support.instant import EVALUATOR, TASK, answer, settings_of

PRICES = """
[[price]]
model = "scripted"
host = "127.0.0.1"
input = 1000.0
output = 1000.0
source = "a test"
date = "2026-11"
"""


def steps_on_disk(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "steps").glob("*.json"))


def test_a_run_stops_before_its_tokens_run_out_and_goes_on_with_more(tmp_path: Path) -> None:
    events: list[Event] = []
    with scripted(answer("1.2"), answer("1.5"), answer("1.1"), answer("2.0"), answer("1.3")) as server:
        given = settings_of(tmp_path, server.url, steps=5, max_tokens=6000)
        first = optimize(str(TASK), listen=events.append, **given)
        asked = len(server.requests)
        assert asked < 5, "the budget ended the run"
        assert all(int(str(request["max_tokens"])) <= 6000 for request in server.requests), "no answer may pass it"
        again = resume(str(tmp_path / "run"), api_key="sk-x", preflight=False)
        assert again == first, "the same budget: the same result"
        assert len(server.requests) == asked
        second = resume(str(tmp_path / "run"), api_key="sk-x", preflight=False, max_tokens=100_000)
        assert len(server.requests) == 5
    assert (first.unfinished, first.verdict, first.speedup.best) == ("budget", "correct", 1.5)
    assert "6,000 tokens" in first.reason
    assert first.cost.tokens == asked * 1100 <= 6000
    assert next(event["text"] for event in events if event["kind"] == "spent") == "1,100 tokens of 6,000"
    assert (second.unfinished, second.verdict, second.speedup.best) == ("", "correct", 2.0)
    assert second.cost.tokens == 5 * 1100, "what was spent before the resume counts"
    assert [step.step for step in second.steps] == [1, 2, 3, 4, 5]
    assert [use.calls for step in second.steps for use in step.models] == [1] * 5


def test_a_run_stops_before_its_dollars_run_out(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(PRICES)
    with scripted(*[answer("1.5")] * 6) as server:
        given = settings_of(tmp_path, server.url, steps=6, max_cost=7.0, prices=tmp_path / "prices.toml")
        result = optimize(str(TASK), **given)
        asked = len(server.requests)
    assert result.unfinished == "budget"
    assert 2 <= asked < 6
    # 1000 tokens in and 100 out at $1000 a million each.
    assert result.cost.usd == pytest.approx(1.1 * asked)
    assert result.cost.usd <= 7.0
    assert [(use.role, use.calls) for use in result.cost.models] == [("code", asked)]
    report = (tmp_path / "run" / "report.md").read_text()
    assert "| 1 | code | 1 | 1,000 | 100 | 1.1000 |" in report
    assert f"| all | code | {asked} |" in report
    assert sum(use.usd or 0.0 for step in result.steps for use in step.models) == pytest.approx(result.cost.usd)


def test_a_budget_in_dollars_needs_the_price(tmp_path: Path) -> None:
    with scripted() as server:
        with pytest.raises(SettingsError, match=r"HTAM_MAX_COST.*'scripted'") as caught:
            optimize(str(TASK), **settings_of(tmp_path, server.url, max_cost=1.0))
        assert server.requests == []
    assert "HTAM_PRICES" in caught.value.remedy
    assert not (tmp_path / "run").exists(), "refused before any work"


def test_an_endpoint_that_dies_for_good_ends_the_run_with_its_best_kernel(tmp_path: Path) -> None:
    with scripted(answer("1.2"), answer("wrong"), failure(401, "the key was withdrawn")) as server:
        first = optimize(str(TASK), **settings_of(tmp_path, server.url))
    assert (first.unfinished, first.verdict, first.speedup.best) == ("model", "correct", 1.2)
    assert "401" in first.reason
    assert Path(first.kernel or "").is_file()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["unfinished"] == "model"
    with scripted(answer("1.8"), answer("1.1")) as server:
        second = resume(str(tmp_path / "run"), api_key="sk-x", preflight=False, base_url=server.url)
        assert len(server.requests) <= 2
    assert (second.unfinished, second.verdict) == ("", "correct")
    assert second.speedup.best == 1.8
    assert [step.step for step in second.steps] == [1, 2, 3]
    assert second.steps[1].verdict == "wrong", "a step whose repair could not be asked for stays as it was"


def test_without_a_kernel_the_endpoints_failure_is_the_outcome_and_a_resume_asks_again(tmp_path: Path) -> None:
    with scripted(failure(401, "no such key")) as server, pytest.raises(ModelError, match="401"):
        optimize(str(TASK), **settings_of(tmp_path, server.url, steps=1))
    assert steps_on_disk(tmp_path / "run") == []
    with scripted(answer("1.4")) as server:
        result = resume(str(tmp_path / "run"), api_key="sk-x", preflight=False, base_url=server.url)
    assert (result.verdict, result.speedup.best) == ("correct", 1.4)


def test_attempts_that_may_be_billed_count(tmp_path: Path) -> None:
    with scripted(Reply(drop=True), answer("1.5")) as server:
        result: Result = optimize(str(TASK), **settings_of(tmp_path, server.url, steps=1))
        assert len(server.requests) == 2
    (use,) = result.cost.models
    assert use.calls == 2
    assert use.estimated
    assert use.tokens > 1100


TELLING = """
from htam_agent.coding.base import Code

class Coder:
    name = "telling"

    def initial_plan(self, operator, backend):
        return None

    def generate(self, request):
        source = f"# instant: 1.{request.step}\\n# {request.index}\\nclass ModelNew:\\n    pass\\n"
        return Code(source=source, strategy="none", prompt_tokens=900, completion_tokens=100)

    def repair(self, request):
        return self.generate(request.request)
"""


@pytest.mark.parametrize(("candidates", "steps"), [(1, 2), (2, 1)])
def test_a_coder_of_the_users_own_is_not_asked_beyond_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: int, steps: int
) -> None:
    (tmp_path / "telling_coder.py").write_text(TELLING)
    monkeypatch.syspath_prepend(str(tmp_path))
    tools = {"evaluator": EVALUATOR, "coder": "telling_coder:Coder"}
    given = {"backend": "cpp", "seed": 1, "steps": 4, "out": tmp_path / "run", "memory": tmp_path / "memory"}
    result = optimize(str(TASK), candidates=candidates, max_tokens=2500, tools=tools, **given)
    assert (result.unfinished, len(result.steps)) == ("budget", steps)
    assert result.cost.tokens == 2000, "every token once"
    assert sum(use.tokens for use in result.cost.models) == 2000
    assert result.cost.usd is None


def test_what_a_coder_tells_counts_though_another_is_booked_meanwhile() -> None:
    ledger = Ledger(None, None, Budget(tokens=3000))
    own, asked = Scope("run", ledger, 1, "0001-0-0"), Scope("run", ledger, 1, "0001-1-0")
    told = Code(source="x", prompt_tokens=900, completion_tokens=100)
    choice = ModelChoice(role="code", model="m")
    ledger.add(choice, 1, Answer(text="", prompt_tokens=5, completion_tokens=5))
    asked.asked.set()
    count_foreign(told, own)
    count_foreign(told, asked)
    assert sum(use.tokens for use in ledger.uses()) == 1010
    ledger.check()
    count_foreign(told, own)
    with pytest.raises(BudgetSpent, match="2,010 tokens are spent"):
        ledger.check()


@pytest.mark.slow
def test_time_that_is_up_ends_the_run_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    slow = answer("1.5")
    slow.delay = 20.0
    with scripted(answer("1.2"), slow) as server:
        given = settings_of(tmp_path, server.url, max_seconds=12.0, model_attempts=1)
        result = optimize(str(TASK), **given)
    assert (result.unfinished, result.verdict, result.speedup.best) == ("time", "correct", 1.2)
    assert result.cost.seconds < 16.0
