"""From answers as models give them to source."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.coding.parsing import fenced_blocks, literal, parse_answer, without_thinking

FILE = '''# strategy: wide-loads
import torch
from torch import nn

CPP_SRC = r"""
extern "C" void f(float* x) { x[0] = 1.0f; }
"""


class ModelNew(nn.Module):
    def forward(self, x):
        return x
'''


def fence(text: str, language: str = "python", mark: str = "```") -> str:
    return f"{mark}{language}\n{text}{mark}\n"


def source(answer: str, *, cut_off: bool = False) -> str:
    return parse_answer(answer, "cpp", cut_off=cut_off).source


@pytest.mark.parametrize(
    "answer",
    [
        fence(FILE),
        "Here it is:\n\n" + fence(FILE) + "\nIt uses wide loads.",
        fence(FILE, language=""),
        fence(FILE, language="Python3"),
        fence(FILE, mark="~~~~"),
        fence(FILE, mark="````"),
        FILE,
        "<think>\nFirst a draft:\n" + fence("class ModelNew: broken(") + "</think>\n" + fence(FILE),
        "I should think.\n</think>\n" + fence(FILE),
        fence(FILE).replace("\n", "\r\n"),
        "Plan:\n" + fence("step one\n", "text") + fence(FILE) + fence("ModelNew()(x)\n"),
        fence("pip install torch\n", "bash") + fence(FILE),
    ],
)
def test_the_file_is_found(answer: str) -> None:
    parsed = parse_answer(answer, "cpp")
    assert parsed.source == FILE
    assert parsed.strategy == "wide-loads"
    assert parsed.problem == ""


def test_of_two_complete_files_the_later_one_counts() -> None:
    better = FILE.replace("1.0f", "2.0f")
    assert source(fence(FILE) + "On reflection:\n" + fence(better)) == better


def test_a_file_cut_off_after_a_complete_one_does_not_replace_it() -> None:
    assert source(fence(FILE) + "Better still:\n```python\nimport torch\nclass ModelNew(") == FILE


def test_a_fence_inside_a_list_is_dedented() -> None:
    listed = "1. The file:\n\n" + "".join(f"   {line}\n" for line in fence(FILE).splitlines())
    assert source(listed) == FILE


def test_device_code_in_a_fence_of_its_own_is_put_in() -> None:
    device = 'extern "C" void f(float* x) { x[0] = 3.0f; }'
    python = "import torch\n\n\nclass ModelNew:\n    kernel = CPP_SRC\n"
    parsed = parse_answer(fence(device + "\n", "cpp") + fence(python), "cpp")
    assigned = next(node for node in ast.parse(parsed.source).body if isinstance(node, ast.Assign))
    assert ast.unparse(assigned.targets[0]) == "CPP_SRC"
    assert device in ast.literal_eval(assigned.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("I cannot help with that.", "no Python file"),
        (fence("print(1)\n"), "no Python file"),
        ("```python\nimport torch\nclass ModelNew(nn.Module):\n    def forward(self", "cut off"),
        ("<think>still thinking about ModelNew", "cut off"),
        (fence("class ModelNew(:\n"), "does not parse as Python"),
        (fence("if True:\n    class ModelNew: pass\n"), "top level"),
    ],
)
def test_what_is_wrong_is_said(answer: str, said: str) -> None:
    parsed = parse_answer(answer, "cpp")
    assert parsed.source == ""
    assert said in parsed.problem


def test_the_servers_word_on_the_length_limit_counts() -> None:
    parsed = parse_answer("The file begins with import", "cpp", cut_off=True)
    assert "cut off" in parsed.problem


def test_a_thinking_tag_in_the_file_itself_stays() -> None:
    text = FILE.replace("1.0f; }", "1.0f; } // <think>")
    assert source(fence(text)) == text


lines = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029`~"))
prose = st.lists(lines.filter(lambda line: "think" not in line.lower() and "reason" not in line.lower()), max_size=6)


@given(prose, prose, st.sampled_from(["```", "~~~", "`````"]), st.sampled_from(["python", "py", ""]))
def test_prose_round_the_file_does_not_matter(before: list[str], after: list[str], mark: str, language: str) -> None:
    answer = "\n".join([*before, fence(FILE, language, mark), *after])
    assert source(answer) == FILE


@given(st.text())
def test_any_answer_gives_a_file_or_a_problem(answer: str) -> None:
    parsed = parse_answer(answer, "cuda")
    assert bool(parsed.source) != bool(parsed.problem)
    without_thinking(answer)


@given(st.integers(0, len(fence(FILE)) - 2))
def test_an_answer_cut_anywhere_gives_no_file_with_half_a_class(length: int) -> None:
    answer = fence(FILE)[:length]
    parsed = parse_answer(answer, "cpp")
    if parsed.source:
        ast.parse(parsed.source)
        assert "class ModelNew" in parsed.source
    else:
        assert parsed.problem


@given(st.lists(st.tuples(st.sampled_from(["python", "cpp", "text"]), prose), max_size=5))
def test_every_fenced_block_is_found_with_its_text(blocks: list[tuple[str, list[str]]]) -> None:
    answer = "\n\n".join(fence("".join(f"{line}\n" for line in body), language) for language, body in blocks)
    found = fenced_blocks(answer)
    assert [(block.language, block.text.split("\n") if block.text else []) for block in found] == [
        (language, body if body != [""] else []) for language, body in blocks
    ]
    assert all(block.closed for block in found)


@given(st.text())
def test_a_literal_holds_the_text(text: str) -> None:
    value = ast.literal_eval(literal(text))
    assert value in (text, f"\n{text}\n")
