"""A run that a model answered: the sizes of its prompts, and its kernels, built and compared with PyTorch."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from htam_agent.backends.base import DefaultLimits
from htam_agent.backends.cpp import CppBackend, vector_words
from htam_agent.coding.assembly import assemble
from htam_agent.coding.parsing import parse_answers
from htam_agent.coding.recording import Exchange
from htam_agent.coding.shortening import estimated_tokens
from htam_agent.evaluation.policy import inspect_source

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "tests" / "recordings" / "layer_norm_gelu"
EXCHANGES = [Exchange.model_validate_json(path.read_text()) for path in sorted(RECORDING.glob("exchanges/*.json"))]

JUDGE = """
import importlib.util, sys, torch
def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
torch.manual_seed(5)
reference = load("task", sys.argv[1]).Model(512)
torch.nn.init.normal_(reference.norm.weight)
torch.nn.init.normal_(reference.norm.bias)
x = torch.randn(67, 512) * 3
x[5, 7] = float("nan")
right = []
for index, path in enumerate(sys.argv[2:]):
    new = load(f"kernel{index}", path).ModelNew(512)
    new.load_state_dict(reference.state_dict())
    with torch.no_grad():
        right.append(torch.allclose(new(x), reference(x), rtol=1e-4, atol=1e-5, equal_nan=True))
print(right)
"""


def test_the_recording_is_there() -> None:
    assert [exchange.name for exchange in EXCHANGES] == [
        "0001-0-0-code-1", "0002-0-0-code-1", "0003-0-0-code-1",
    ]  # fmt: skip


def test_prompts_stay_small_and_hold_what_they_should() -> None:
    sizes = [estimated_tokens("".join(text for _, text in exchange.messages)) for exchange in EXCHANGES]
    assert statistics.median(sizes) < 8000
    for number, exchange in enumerate(EXCHANGES):
        text = exchange.messages[-1][1]
        sections = ["## The operator", "## The device and the target", "## The direction of this step", "To beat: "]
        sections += ["## The best kernel so far", "## What was tried"] if number else []
        assert all(section in text for section in sections)


def test_each_answer_becomes_a_kernel_that_is_right(tmp_path: Path) -> None:
    kernels = []
    for exchange in EXCHANGES:
        parsed = parse_answers([(exchange.text, exchange.cut_off)], "cpp")
        assert parsed.problem == ""
        source = assemble(parsed.source, "cpp")
        found = inspect_source(source, "cpp", "own-kernels-only")
        assert found.reason == ""
        if "_mm512" in source and "AVX-512" not in vector_words():
            continue  # the second and the third kernel are written for it; the first is built everywhere
        assert CppBackend().build(found.source, tmp_path, DefaultLimits()).ok
        kernels.append(tmp_path / f"{exchange.place}.py")
        kernels[-1].write_text(source)
    task = ROOT / "tests" / "tasks" / "layer_norm_gelu.py"
    judged = subprocess.run(
        [sys.executable, "-c", JUDGE, str(task), *map(str, kernels)],
        env={"HTAM_KERNEL_DIR": str(tmp_path), "PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.stdout.strip() == str([True] * len(kernels)), judged.stderr
