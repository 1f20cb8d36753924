"""From answers as models give them to source."""

from __future__ import annotations

import ast
import difflib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.coding.assembly import assemble
from htam_agent.coding.fences import fenced_blocks, without_thinking
from htam_agent.coding.parsing import device_source, joined, literal, parse_answer, parse_answers
from htam_agent.coding.patching import apply_diff
from htam_agent.evaluation.policy import inspect_source

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


def test_a_fence_round_the_whole_answer_is_looked_into() -> None:
    assert source("```markdown\nHere it is:\n\n" + fence(FILE) + "```\n") == FILE


def test_an_answer_that_is_one_json_object_is_unwrapped() -> None:
    assert source(json.dumps({"explanation": "wide", "code": FILE})) == FILE
    assert "no Python file" in parse_answer('{"code": "class Model: pass"}', "cpp").problem


def test_a_byte_order_mark_does_not_matter() -> None:
    assert source("\ufeff" + FILE) == FILE


def test_a_file_that_builds_itself_is_taken_and_the_policy_reads_it_so() -> None:
    text = '''import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SRC = r"""torch::Tensor twice(torch::Tensor x) { return x * 2; }"""
module = load_inline(name="twice", cpp_sources=[SRC], functions=["twice"])


class ModelNew(nn.Module):
    def forward(self, x):
        return module.twice(x)
'''
    parsed = parse_answer(fence(text), "cpp")
    assert parsed.source == text
    assert inspect_source(assemble(parsed.source, "cpp"), "cpp", "own-kernels-only").deferred


@pytest.mark.parametrize("length", [40, 63, 90, 118, 140])
@pytest.mark.parametrize("going_on", ["bare", "fenced", "repeating", "the whole file"])
def test_an_answer_that_was_cut_off_is_gone_on_with(length: int, going_on: str) -> None:
    first, rest = f"Sure.\n```python\n{FILE[:length]}", FILE[length:]
    first_line = FILE[:length].rpartition("\n")[2]
    answers = {
        "bare": f"{rest}```\n",
        "fenced": f"Going on:\n```python\n{rest}```\n" if not first_line else f"```python\n{rest}```\n",
        "repeating": f"```python\n{FILE[:length].splitlines(keepends=True)[-1]}{rest}```\n",
        "the whole file": fence(FILE),
    }
    parsed = parse_answers([(first, True), (answers[going_on], False)], "cpp")
    assert parsed.source == FILE, parsed


def test_a_cut_answer_shows_its_ending_and_one_without_a_file_does_not() -> None:
    cut = parse_answer(f"```python\n{FILE[:150]}", "cpp", cut_off=True)
    assert cut.ending.splitlines()[-1] == FILE[:150].splitlines()[-1]
    assert parse_answer("<think>so long", "cpp", cut_off=True).ending == ""
    assert parse_answer("I begin with", "cpp", cut_off=True).ending == ""


def test_an_answer_can_be_cut_off_twice() -> None:
    first, second, third = f"```python\n{FILE[:90]}", FILE[90:180], f"{FILE[180:]}```"
    assert parse_answers([(first, True), (second, True), (third, False)], "cpp").source == FILE


@pytest.mark.parametrize("language", ["cpp", "cuda", "python"])
def test_what_goes_on_with_a_cut_off_file_is_not_taken_for_new_device_code(language: str) -> None:
    """In a fence of the device's language it looks like an answer that changes only that of the best kernel."""
    best = FILE.replace("1.0f", "9.0f")
    cut = FILE.index("extern")
    parsed = parse_answers([(f"```python\n{FILE[:cut]}", True), (fence(FILE[cut:], language), False)], "cpp", best)
    assert parsed.source == FILE
    assert parsed.note == ""
    device, rest = FILE[cut:].split('\n"""\n')
    answers = [(f"```python\n{FILE[:cut]}", True), (f"```{language}\n{device}\n```", True), (f'"""\n{rest}```', False)]
    assert parse_answers(answers, "cpp", best).source == FILE


DIFF = """```diff
--- a/kernel.py
+++ b/kernel.py
@@ -5,3 +5,4 @@
 CPP_SRC = r\"\"\"
-extern "C" void f(float* x) { x[0] = 1.0f; }
+extern "C" void f(float* x) { x[0] = 2.0f; }
+// more
 \"\"\"
@@ -1 +1 @@
-# strategy: wide-loads
+# strategy: other
```
"""


def test_a_diff_is_applied_to_the_file_that_was_shown() -> None:
    parsed = parse_answer(DIFF, "cpp", base=FILE)
    assert parsed.source == FILE.replace("1.0f; }", "2.0f; }\n// more").replace("wide-loads", "other")
    assert "diff" in parsed.note
    assert parse_answer(DIFF, "cpp").source == "", "nothing to apply it to"


def test_search_and_replace_blocks_are_applied() -> None:
    old = 'extern "C" void f(float* x) { x[0] = 1.0f; }'
    text = f"```\n<<<<<<< SEARCH\n{old}\n=======\n{old.replace('1.0f', '7.0f')}\n>>>>>>> REPLACE\n```"
    assert source_on_base(text) == FILE.replace("1.0f", "7.0f")


@pytest.mark.parametrize(
    ("diff", "said"),
    [
        ("@@ -1 +1 @@\n-no such line\n+new", "does not fit"),
        ("@@ -1 +1 @@\n \n+new", "no line that stands in the file"),
        ("@@ -1 +1 @@\n-\n+new", "places"),
        ("@@ -1 +1 @@\n context alone", "changes nothing"),
        ("@@ -1 +1 @@\n-class ModelNew(nn.Module):\n+class ModelNew(nn.Module:", "does not parse"),
    ],
)
def test_a_diff_that_does_not_fit_is_said(diff: str, said: str) -> None:
    parsed = parse_answer(f"```diff\n{diff}\n```", "cpp", base=FILE)
    assert parsed.source == ""
    assert said in parsed.problem
    assert "complete file" in parsed.problem


@pytest.mark.parametrize("form", ["cpp", "python"])
def test_device_code_alone_goes_into_the_file_that_was_shown(form: str) -> None:
    device = '\nextern "C" void f(float* x) { x[0] = 5.0f; }\n'
    text = fence(device, "cpp") if form == "cpp" else fence(f'CPP_SRC = r"""{device}"""\n')
    parsed = parse_answer(f"Only the kernel changes:\n{text}", "cpp", base=FILE)
    assert device_source(parsed.source).strip() == device.strip()
    assert parsed.source.replace("5.0f", "1.0f").split() == FILE.replace('r"""', "r'''").replace('"""', "'''").split()
    assert "only the device code" in parsed.note


def test_a_module_without_its_device_code_keeps_that_of_the_file_before() -> None:
    module = "import torch\nfrom torch import nn\n\n\nclass ModelNew(nn.Module):\n    kernel = CPP_SRC\n"
    parsed = parse_answer(fence(module), "cpp", base=FILE)
    assert device_source(parsed.source).strip() == device_source(FILE).strip()
    assert "file before" in parsed.note


def source_on_base(answer: str) -> str:
    return parse_answer(answer, "cpp", base=FILE).source


@given(st.lists(st.tuples(st.text(max_size=80), st.booleans()), max_size=4), st.sampled_from(["", FILE]))
def test_any_conversation_gives_a_file_or_a_problem(answers: list[tuple[str, bool]], base: str) -> None:
    parsed = parse_answers(answers, "cpp", base)
    assert bool(parsed.source) != bool(parsed.problem)


@given(st.data())
def test_a_diff_of_any_change_of_lines_can_be_applied(data: st.DataObject) -> None:
    lines = FILE.splitlines()
    changed = list(lines)
    for place in data.draw(st.sets(st.integers(0, len(lines) - 1), min_size=1, max_size=4)):
        changed[place] = f"# {data.draw(st.integers(0, 999))}"
    diff = "\n".join(difflib.unified_diff(lines, changed, lineterm="", n=9))
    assert apply_diff(FILE, diff).splitlines() == changed if changed != lines else not diff


@given(st.text(alphabet="ab\n {};", max_size=60), st.text(alphabet="ab\n {};", max_size=60))
def test_joining_keeps_what_came_before(before: str, after: str) -> None:
    assert joined(before, after).startswith(before)
