"""The recorded conversation, played back over HTTP to the real coder; its kernels are built and run for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from htam_agent.backends.base import DefaultLimits
from htam_agent.backends.cpp import CppBackend
from htam_agent.coding.base import BestSoFar, Code, CodeRequest, RepairRequest
from htam_agent.coding.examples import example_request
from htam_agent.coding.model import ModelCoder
from htam_agent.errors import ModelError
from htam_agent.evaluation.policy import inspect_source
from htam_agent.verdict import CompileResult, Failure, FailureKind, Times
from tests.support.chat import model_coder
from tests.support.replay_server import RECORDINGS, ReplayServer, kind_of, replaying

TASK = Path(__file__).resolve().parents[1] / "tasks" / "row_softmax.py"

JUDGE = """
import importlib.util, sys, torch
def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
task = load("task", sys.argv[1])
torch.manual_seed(3)
reference = task.Model(1024)
x = task.get_inputs()[0]
answers = []
for index, path in enumerate(sys.argv[2:]):
    new = load(f"kernel{index}", path).ModelNew(1024)
    new.load_state_dict(reference.state_dict())
    with torch.no_grad():
        answers.append(bool(torch.allclose(new(x), reference(x), rtol=1e-4, atol=1e-7)))
print(answers)
"""


def request(best: str | None = None) -> CodeRequest:
    found = example_request("cpp").model_copy(update={"task_source": TASK.read_text()})
    if best is None:
        return found
    return found.model_copy(
        update={"best": BestSoFar(source=best, plan=None, times_ms=Times(candidate=1.0)), "step": 2}
    )


def repair(asked: CodeRequest, code: Code, kind: FailureKind, evidence: str) -> RepairRequest:
    failure = Failure(kind=kind, stage="compile" if kind == "compile" else "verify", reason=kind, evidence=evidence)
    return RepairRequest(
        request=asked, source=code.source, plan=None, failure=failure, tried=[code.strategy], attempt=1
    )


def build(code: Code, folder: Path) -> CompileResult:
    """As the harness does: the device code is read off the syntax tree."""
    found = inspect_source(code.source, "cpp", "own-kernels-only")
    assert found.reason == "", found.reason
    return CppBackend().build(found.source, folder, DefaultLimits())


def coder(server: ReplayServer) -> ModelCoder:
    return model_coder(server.url)


def test_the_recording_plays_as_it_was_made(tmp_path: Path) -> None:
    with replaying("row_softmax") as server:
        writer = coder(server)
        first = writer.generate(request())
        built = build(first, tmp_path)
        assert not built.ok
        assert "_mm256_exp_ps" in built.log
        mended = writer.repair(repair(request(), first, "compile", built.log))
        later = request(mended.source)
        wrong = writer.generate(later)
        right = writer.repair(repair(later, wrong, "wrong", "x1: outputs differ"))
        faster = writer.generate(later)
    assert server.complete
    codes = [mended, wrong, right, faster]
    assert all(code.prompt_tokens > 500 and code.completion_tokens > 200 for code in codes)
    paths = []
    for index, code in enumerate(codes):
        assert build(code, tmp_path).ok
        paths.append(tmp_path / f"kernel{index}.py")
        paths[-1].write_text(code.source)
    result = subprocess.run(
        [sys.executable, "-c", JUDGE, str(TASK), *map(str, paths)],
        env={"HTAM_KERNEL_DIR": str(tmp_path), "PATH": "/nonexistent"},  # the prebuilt binaries are all there is
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.strip() == "[True, False, True, True]", result.stderr


def test_another_question_is_refused_loudly() -> None:
    with replaying("row_softmax") as server:
        with pytest.raises(ModelError, match="replay"):
            coder(server).repair(repair(request(), Code(source="x = 1\n"), "wrong", "no"))
        assert not server.complete
        assert "recorded" in server.mismatches[0]
        assert server.served == 0


def test_a_question_too_many_is_refused_loudly(tmp_path: Path) -> None:
    for name in ("ask", "say"):
        (tmp_path / name).mkdir()
        file = RECORDINGS / "row_softmax" / name / "0001.json"
        (tmp_path / name / "0001.json").write_text(file.read_text())
    with ReplayServer(tmp_path).running() as server:
        writer = coder(server)
        assert writer.generate(request()).source
        assert server.complete
        with pytest.raises(ModelError, match="has 1 answers"):
            writer.generate(request())
        assert not server.complete


def test_the_recorded_requests_are_what_todays_prompts_ask() -> None:
    """The kinds are read off the prompts' words: a reworded prompt needs a new recording, or QUESTIONS a new entry."""
    asks = [json.loads(path.read_text()) for path in sorted((RECORDINGS / "row_softmax" / "ask").glob("*.json"))]
    kinds = [kind_of(ask) for ask in asks]
    assert [kind.question for kind in kinds] == ["generate", "compile", "generate", "wrong", "generate"]
    assert [kind.has_best for kind in kinds] == [False, False, True, True, True]
    assert {kind.backend for kind in kinds} == {"cpp"}
