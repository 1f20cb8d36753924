"""Answers that loop, or are made to be slow to read: a megabyte of anything is read in a moment."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.coding.fences import without_thinking
from htam_agent.coding.parsing import MOST_CHARACTERS, MOST_FILE, parse_answer
from htam_agent.coding.patching import MOST_HUNKS, Misfit, apply_diff, looks_like_diff

BASE = "import torch\n\nCPP_SRC = 'extern \"C\" void f() {}'\n\n\nclass ModelNew:\n    pass\n"
MEGABYTE = 1_000_000
SECONDS = 10.0
"""Much more than any of this takes on a busy machine, and much less than the hours of a scan that is not linear."""


def filled(unit: str, size: int = MEGABYTE) -> str:
    return unit * (size // len(unit))


@pytest.mark.parametrize(
    "answer",
    [
        filled("<think>"),
        filled("<think></thinking>"),
        filled("<<<<<<< SEARCH\n=======\n"),
        "```\n" + filled("<<<<<<< SEARCH\n=======\n", MOST_CHARACTERS - 100) + "\n```",
        "```diff\n" + filled("@@\n-x\n+y\n", MOST_CHARACTERS - 100) + "```\n",
        "```diff\n@@\n" + filled("\n", MOST_CHARACTERS - 100) + "+x\n```\n",
        "```" + filled("a", MOST_CHARACTERS - 100) + "`",
        "```" + filled(" ", MOST_CHARACTERS - 100) + "`",
        filled("```python\n# ModelNew CPP_SRC\n```\n", MOST_CHARACTERS - 100),
        filled("#\n", MOST_CHARACTERS - 100),
        '{"ModelNew": ' + filled("["),
        "import torch\nclass ModelNew: pass\nx = " + filled("-", MOST_CHARACTERS - 100) + "1\n",
    ],
    ids=str.__len__,
)
def test_a_hostile_answer_is_read_in_a_moment(answer: str) -> None:
    started = time.monotonic()
    parsed = parse_answer(answer, "cpp", base=BASE)
    assert parsed.problem
    assert time.monotonic() - started < SECONDS


def test_a_diff_of_lines_that_repeat_themselves_is_applied_in_a_moment() -> None:
    started = time.monotonic()
    source, hunk = filled("x\n", 400_000), filled("-x\n", 300_000)
    with pytest.raises(Misfit, match="several places"):
        apply_diff(source, f"@@\n{hunk}+y\n")
    with pytest.raises(Misfit, match="does not fit"):
        apply_diff(source, f"@@\n{hunk}-y\n")
    with pytest.raises(Misfit, match="hunks"):
        apply_diff(source, "@@\n-x\n+y\n" * (MOST_HUNKS + 1))
    assert not looks_like_diff("", filled("<<<<<<< SEARCH\n"))
    assert time.monotonic() - started < SECONDS


def test_a_file_that_no_model_could_be_shown_again_is_refused() -> None:
    long = BASE + filled("# more\n", MOST_FILE)
    assert f"at most {MOST_FILE}" in parse_answer(f"```python\n{long}```\n", "cpp").problem
    assert parse_answer(f"```python\n{BASE}```\n", "cpp").source == BASE


tags = st.sampled_from(["<think>", "</think>", "<THINK>", "<reasoning>", "</reasoning>", "a", "\n"])
PAIRS = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
END = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)


@given(st.lists(tags, max_size=12).map("".join))
def test_thinking_is_what_stands_between_a_tag_and_the_next_closing_one_of_its_name(text: str) -> None:
    rest = END.split(PAIRS.sub("", text))[-1]
    opened = re.search(r"<(think|reasoning)>", rest, re.IGNORECASE)
    assert without_thinking(text) == ((rest[: opened.start()], True) if opened else (rest, False))
