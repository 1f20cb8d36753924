"""The model coder over loopback HTTP, and the files that it makes, which really build and run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from htam_agent.backends.flags import CPP_FLAGS
from htam_agent.coding.assembly import LAUNCHER_NAME, OMITTED, assemble, launcher_text, without_launcher
from htam_agent.coding.base import Coder, RepairRequest
from htam_agent.coding.examples import example_request
from htam_agent.coding.launchers import cpp as cpp_launcher
from htam_agent.coding.model import ASKS, FREE, ModelCoder
from htam_agent.coding.parsing import MOST_FILE
from htam_agent.errors import ModelError, SettingsError
from htam_agent.verdict import Failure
from htam_agent.words import Backend
from tests.support.chat import model_coder
from tests.support.endpoint import Reply, ScriptedEndpoint, completion, failure, scripted

ANSWER = '''It doubles.

```python
# strategy: wide-loads
import torch
from torch import nn

CPP_SRC = r"""
extern "C" void twice(float* y, const float* x, long count) { for (long i = 0; i < count; ++i) y[i] = 2 * x[i]; }
"""


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self._twice = load_kernels(CPP_SRC).twice
        self._twice.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]

    def forward(self, x):
        y = torch.empty_like(x)
        self._twice(y.data_ptr(), x.data_ptr(), x.numel())
        return y
```
'''


def coder(server: ScriptedEndpoint) -> ModelCoder:
    return model_coder(server.url)


def messages(server: ScriptedEndpoint, index: int = -1) -> list[dict[str, str]]:
    found = server.requests[index]["messages"]
    assert isinstance(found, list)
    return found


def repair_request(source: str) -> RepairRequest:
    failure = Failure(kind="compile", stage="compile", reason="does not build", evidence="error: expected ';'")
    return RepairRequest(
        request=example_request("cpp"), source=source, plan=None, failure=failure, tried=["wide-loads"], attempt=1
    )


def test_it_is_a_coder() -> None:
    assert isinstance(model_coder("http://127.0.0.1:9/v1"), Coder)


def test_an_answer_becomes_a_complete_candidate() -> None:
    with scripted(Reply(200, completion(ANSWER, usage=(900, 80)))) as server:
        code = coder(server).generate(example_request("cpp"))
    assert code.refusal == ""
    assert code.strategy == "wide-loads"
    assert (code.prompt_tokens, code.completion_tokens, code.tokens_estimated) == (900, 80, False)
    assert launcher_text("cpp") in code.source
    assert [message["role"] for message in messages(server)] == ["system", "user"]


def test_the_candidate_stands_alone_and_computes(tmp_path: Path) -> None:
    with scripted(Reply(200, completion(ANSWER))) as server:
        code = coder(server).generate(example_request("cpp"))
    (tmp_path / "kernel.py").write_text(code.source)
    check = (
        "import torch, kernel\nx = torch.arange(5.0)\nprint(kernel.ModelNew()(x).tolist())\n"
        "import sys; assert not any(name.startswith('htam') for name in sys.modules)"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-c", check], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == "[0.0, 2.0, 4.0, 6.0, 8.0]", result.stderr


def test_a_repair_shows_the_source_and_the_evidence() -> None:
    with scripted(Reply(200, completion(ANSWER))) as server:
        failed = coder(server).generate(example_request("cpp")).source
    with scripted(Reply(200, completion(ANSWER.replace("# strategy: wide-loads\n", "")))) as server:
        code = coder(server).repair(repair_request(failed))
    assert code.strategy == "wide-loads", "a repair stays with its strategy"
    said = messages(server)
    assert [message["role"] for message in said] == ["system", "user", "assistant", "user"]
    assert "twice" in said[2]["content"]
    assert OMITTED in said[2]["content"]
    assert launcher_text("cpp") not in said[2]["content"]
    assert "expected ';'" in said[3]["content"]


def test_an_answer_without_a_file_is_asked_for_again() -> None:
    replies = [
        Reply(200, completion("I need more time.", usage=(10, 5))),
        Reply(200, completion(ANSWER, usage=(20, 50))),
    ]
    with scripted(*replies) as server:
        code = coder(server).generate(example_request("cpp"))
    assert code.source
    assert (code.prompt_tokens, code.completion_tokens) == (30, 55)
    assert "no Python file" in messages(server)[-1]["content"]


def test_answers_without_a_file_end_in_a_refusal() -> None:
    with scripted(*[Reply(200, completion("no", usage=None))] * 10) as server:
        code = coder(server).generate(example_request("cpp"))
        assert len(server.requests) == ASKS
    assert code.source == ""
    assert code.strategy == ""
    assert "no usable file" in code.refusal
    assert code.tokens_estimated


@pytest.mark.parametrize("named", ["# strategy: none\n", "", "# strategy: invented\n"])
def test_only_an_offered_strategy_is_credited(named: str) -> None:
    answer = ANSWER.replace("# strategy: wide-loads\n", named)
    with scripted(Reply(200, completion(answer))) as server:
        code = coder(server).generate(example_request("cpp"))
    assert code.strategy == FREE
    assert ("invented" in code.note) == ("invented" in named)


def test_the_endpoints_failure_is_a_model_error() -> None:
    with scripted(failure(401, "bad key")) as server, pytest.raises(ModelError):
        coder(server).generate(example_request("cpp"))


def test_a_prompt_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    model_coder("http://127.0.0.1:9/v1").prompts()
    (tmp_path / "code.md").write_text("{{ nonsense }}")
    with pytest.raises(SettingsError, match="nonsense"):
        model_coder("http://127.0.0.1:9/v1", tmp_path).prompts()


def test_the_launchers_flags_are_the_harnesss() -> None:
    assert cpp_launcher.CPP_FLAGS == CPP_FLAGS


@pytest.mark.parametrize("backend", ["cpp", "cuda"])
def test_the_launcher_defines_what_the_prompts_name(backend: Backend) -> None:
    text = launcher_text(backend)
    assert f"def {LAUNCHER_NAME[backend]}(" in text or f"class {LAUNCHER_NAME[backend]}:" in text
    assert "htam_agent" not in text


@pytest.mark.parametrize("backend", ["cpp", "cuda"])
def test_assembly_can_be_undone_and_is_not_repeated(backend: Backend) -> None:
    source = f'"""A kernel."""\n\nimport torch\n\nX = {LAUNCHER_NAME[backend]}("")\n\n\nclass ModelNew:\n    pass\n'
    whole = assemble(source, backend)
    assert launcher_text(backend) in whole
    compile(whole, "kernel", "exec")
    assert whole.startswith('"""A kernel."""')
    assert assemble(whole, backend) == whole
    shown = without_launcher(whole, backend)
    assert OMITTED in shown
    assert assemble(shown, backend).count(launcher_text(backend)) == 1


def test_a_file_without_a_call_of_the_launcher_stays_as_it_is() -> None:
    source = "import torch\n\n\nclass ModelNew:\n    pass\n"
    assert assemble(source, "cpp") == source


def test_a_cut_off_answer_is_gone_on_with() -> None:
    start, rest = ANSWER[:420], ANSWER[420:]
    replies = [
        Reply(200, completion(start, finish="length")),
        Reply(200, completion(f"```python\n{rest}")),
    ]
    with scripted(*replies) as server:
        code = coder(server).generate(example_request("cpp"))
    assert code.source.endswith("        return y\n")
    assert "twice" in code.source
    asked = messages(server)[-1]["content"]
    assert "Go on exactly behind that" in asked
    assert start.splitlines()[-1] in asked


def test_a_diff_mends_the_file_that_was_shown() -> None:
    with scripted(Reply(200, completion(ANSWER))) as server:
        failed = coder(server).generate(example_request("cpp")).source
    line = next(line for line in failed.splitlines() if "void twice" in line)
    diff = f"The factor was wrong.\n\n```diff\n@@\n-{line}\n+{line.replace('2 * x[i]', '3 * x[i]')}\n```\n"
    with scripted(Reply(200, completion(diff))) as server:
        code = coder(server).repair(repair_request(failed))
    assert code.source.split() == failed.replace("2 * x[i]", "3 * x[i]").split()
    assert "diff" in code.note
    assert code.strategy == "wide-loads"


LONG = "This model's maximum context length is 8192 tokens, and 9000 were sent"


def test_a_repair_that_is_too_long_for_the_model_fails_alone() -> None:
    """The run goes on; a first question that does not fit is the settings' fault, and ends it."""
    with scripted(failure(400, LONG)) as server:
        code = coder(server).repair(repair_request("x = 1\n"))
    assert code.source == ""
    assert "maximum context length" in code.refusal
    with scripted(failure(400, LONG)) as server, pytest.raises(ModelError):
        coder(server).generate(example_request("cpp"))
    with scripted(Reply(200, completion("no", usage=(10, 5))), failure(400, LONG)) as server:
        code = coder(server).generate(example_request("cpp"))
    assert "too long" in code.refusal
    assert code.prompt_tokens == 10
    with scripted(failure(400, "no such parameter")) as server, pytest.raises(ModelError):
        coder(server).repair(repair_request("x = 1\n"))


def test_a_file_that_is_too_long_to_be_shown_is_not_sent() -> None:
    with scripted() as server:
        code = coder(server).repair(repair_request("# more\n" * MOST_FILE))
        assert not server.requests
    assert code.source == ""
    assert f"more than the {MOST_FILE}" in code.refusal


def test_a_conversation_about_answers_that_loop_stays_bounded() -> None:
    looping = "```python\nimport torch\n" + "x = 1; " * 100_000
    with scripted(
        *[Reply(200, completion(looping[:size], finish="length")) for size in (300_000, 350_000, 700_000)]
    ) as server:
        assert coder(server).generate(example_request("cpp")).refusal
        longest = max(sum(len(said["content"]) for said in messages(server, turn)) for turn in range(ASKS))
        first = sum(len(said["content"]) for said in messages(server, 0))
    assert longest < first + 60_000
