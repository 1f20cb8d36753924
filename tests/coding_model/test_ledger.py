"""The books of a run: nothing is asked that could pass the budget, and nothing that was spent is forgotten."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.coding.chat import Answer
from htam_agent.coding.ledger import FIRST_ANSWER, Budget, Ledger
from htam_agent.coding.prices import Price, PriceTable
from htam_agent.coding.roles import ModelChoice
from htam_agent.coding.usage import by_role, total_usd
from htam_agent.errors import BudgetSpent, RunError, SettingsError

CHOICE = ModelChoice(model="m", base_url="http://localhost/v1")
TABLE = PriceTable(prices=(Price(model="m", input=10.0, output=20.0, source="a test", date="2026-11"),))


def answer(asked: int = 100, said: int = 50, estimated: bool = False) -> Answer:
    return Answer(text="", prompt_tokens=asked, completion_tokens=said, estimated=estimated)


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.floats(0, 1), st.sampled_from(["end", "lose", "fail"])), max_size=12)
)
def test_a_model_that_keeps_its_limit_never_passes_the_budget(questions: list[tuple[int, float, str]]) -> None:
    budget = Budget(tokens=9000, usd=0.12)
    ledger = Ledger(None, TABLE, budget)
    billed_tokens, billed_usd = 0, 0.0
    for size, share, outcome in questions:
        try:
            question = ledger.begin(CHOICE, 1, size)
        except BudgetSpent:
            continue
        assert question.limit is not None
        # The estimate of the prompt is on the high side: at most a token for every three bytes.
        asked, answered = size // 3, int(share * question.limit)
        if outcome == "end":
            ledger.end(question, answer(asked, answered))
        elif outcome == "lose":
            ledger.lose(question)
        else:
            ledger.fail(question)
        if outcome != "fail":
            # What the endpoint bills, whether its answer came or not.
            billed_tokens += asked + answered
            billed_usd += (asked * 10.0 + answered * 20.0) / 1e6
        uses = ledger.uses()
        assert billed_tokens <= sum(use.tokens for use in uses) <= 9000
        assert billed_usd <= (total_usd(uses) or 0.0) + 1e-9
        assert (total_usd(uses) or 0.0) <= 0.12


def test_the_first_question_needs_room_for_an_answer() -> None:
    with pytest.raises(BudgetSpent, match="500 tokens has no room"):
        Ledger(None, TABLE, Budget(tokens=500)).begin(CHOICE, 1, 30)
    assert Ledger(None, TABLE, Budget(tokens=FIRST_ANSWER + 100)).begin(CHOICE, 1, 30).limit


def test_without_a_budget_nothing_is_limited() -> None:
    assert Ledger(None).begin(CHOICE, 1, 10**9).limit is None


def test_an_attempt_that_broke_off_counts_with_all_that_its_answer_could_have() -> None:
    ledger = Ledger(None, None, Budget(tokens=100_000))
    ledger.lose(ledger.begin(CHOICE.model_copy(update={"max_answer_tokens": 5000}), 1, 297))
    assert [(use.tokens, use.estimated) for use in ledger.uses()] == [(100 + 5000, True)]
    ledger.lose(ledger.begin(CHOICE.model_copy(update={"max_answer_tokens": 94_000}), 1, 297))
    with pytest.raises(BudgetSpent, match="99,200 tokens are spent, 99,200 of them reserved for attempts that broke"):
        ledger.begin(CHOICE, 1, 30)
    unlimited = Ledger(None)
    unlimited.lose(unlimited.begin(CHOICE, 1, 297))
    assert sum(use.tokens for use in unlimited.uses()) == 100 + FIRST_ANSWER


def test_a_question_waits_for_those_that_hold_its_room() -> None:
    ledger = Ledger(None, None, Budget(tokens=5000))
    first = ledger.begin(CHOICE, 1, 300)
    got: list[int | None] = []
    thread = threading.Thread(target=lambda: got.append(ledger.begin(CHOICE, 1, 300).limit))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "the first question holds all the room"
    ledger.end(first, answer(100, 200))
    thread.join(60.0)
    assert got == [5000 - 300 - 101]


def test_books_are_taken_up_with_what_a_killed_process_had_asked(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    first = Ledger(path, TABLE)
    first.end(first.begin(CHOICE, 1, 300), answer())
    first.fail(first.begin(CHOICE, 1, 300))
    first.begin(CHOICE, 2, 300)  # the process dies while it waits
    with path.open("a", encoding="utf-8") as file:
        file.write('{"call": 9, "ev')  # and another in the middle of a line
    second = Ledger(path, TABLE)
    assert [(use.tokens, use.estimated) for use in second.uses()] == [(150, False), (101 + 50, True)]
    second.end(second.begin(CHOICE, 2, 300), answer())
    third = Ledger(path, TABLE)
    assert by_role(third.uses()) == by_role(second.uses())
    assert len(third.uses(step=2)) == 2
    (use,) = by_role(third.uses())
    assert (use.calls, use.estimated) == (3, True)
    assert use.usd == pytest.approx(2 * (100 * 10 + 50 * 20) / 1e6 + (101 * 10 + 50 * 20) / 1e6)


def test_a_corrupt_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text('{"call": 1}\n{"call": 2}\n')
    with pytest.raises(RunError, match="line 1"):
        Ledger(path)


def test_the_progress_line() -> None:
    ledger = Ledger(None, TABLE, Budget(tokens=100_000, usd=2.0))
    assert ledger.summary() == ""
    ledger.end(ledger.begin(CHOICE, 1, 300), answer(3000, 210, estimated=True))
    assert ledger.summary() == "about 3,210 tokens of 100,000, $0.0342 of $2"


PRICE_TEXT = '[[price]]\nmodel = "m"\ninput = 1\noutput = 2\nsource = "a test"\ndate = "2026-11-30"\n'


@pytest.mark.parametrize(
    ("model", "base_url", "known"),
    [
        ("gpt-5", None, True),
        ("gpt-5-2025-08-07", None, True),
        ("openai:gpt-5", None, True),
        ("anthropic:claude-sonnet-4-5-20250929", None, True),
        ("deepseek-v4-pro", "https://api.deepseek.com/v1", True),
        ("gpt-5", "http://localhost:8000/v1", False),
        ("gpt-5-unheard-of", None, False),
        ("m", "http://localhost:8000/v1", True),
        ("m", None, True),
    ],
)
def test_a_price_is_that_of_a_model_at_its_host(tmp_path: Path, model: str, base_url: str | None, known: bool) -> None:
    (tmp_path / "own.toml").write_text(PRICE_TEXT)
    table = PriceTable.load(tmp_path / "own.toml")
    assert (table.find(ModelChoice(model=model, base_url=base_url)) is not None) == known


def test_a_users_price_wins(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(PRICE_TEXT.replace('"m"', '"gpt-5"'))
    price = PriceTable.load(tmp_path / "own.toml").find(ModelChoice(model="gpt-5"))
    assert price is not None
    assert price.usd(1_000_000, 1_000_000) == 3.0


def test_every_shipped_price_has_a_source_and_a_date() -> None:
    prices = PriceTable.load().prices
    assert len(prices) > 10
    assert all(price.source.startswith("https://") and price.host for price in prices)
    names = [(price.model, price.host) for price in prices]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "text", ["[[price]\n", '[[price]]\nmodel = "m"\n', PRICE_TEXT.replace("1", "-1"), PRICE_TEXT + "more = 1\n", "\xff"]
)
def test_a_table_that_does_not_fit_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.toml").write_text(text, encoding="latin-1")
    with pytest.raises(SettingsError, match=r"own\.toml"):
        PriceTable.load(tmp_path / "own.toml")
    with pytest.raises(SettingsError, match="cannot be read"):
        PriceTable.load(tmp_path / "missing.toml")
