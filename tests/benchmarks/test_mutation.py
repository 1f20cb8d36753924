"""Faulty kernels: made the same way every time, and the search tells them from the correct one."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import torch

from benchmarks.evaluator.files import Backend
from benchmarks.mutation.mutate import RULES, mutants_of
from benchmarks.mutation.operators import OPERATORS
from benchmarks.mutation.run import MOST
from benchmarks.mutation.small_operator import Operator
from benchmarks.mutation.witness import Witness
from htam_agent.backends.base import DefaultLimits
from htam_agent.backends.cuda import CudaBackend


def module_of(text: str) -> types.ModuleType:
    module = types.ModuleType("candidate")
    exec(compile(text, "candidate.py", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("backend", ["cpp", "cuda"])
def test_hundreds_of_mutants_all_different_and_always_the_same(backend: Backend) -> None:
    texts: set[str] = set()
    count = 0
    for name, operator in OPERATORS.items():
        original = operator.kernel(backend)
        found = mutants_of(name, original, backend, MOST)
        assert [item.text for item in found] == [item.text for item in mutants_of(name, original, backend, MOST)]
        assert original not in {item.text for item in found}
        texts |= {f"{name} {item.text}" for item in found}
        count += len(found)
    assert len(texts) == count >= 600


def test_every_rule_makes_a_mutant_somewhere() -> None:
    made = {
        (item.kind, item.change)
        for name, operator in OPERATORS.items()
        for backend in ("cpp", "cuda")
        for item in mutants_of(name, operator.kernel(backend), backend, 10_000)
    }
    assert {kind for kind, _ in made} == {rule.kind for rule in RULES}


@pytest.mark.parametrize(
    "name", ["affine-relu", "layer-norm", "matmul-bias", "max-pool", "arg-max", "embedding-scaled"]
)
def test_the_correct_kernel_is_correct(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    operator = OPERATORS[name]
    task = module_of(operator.task())
    model = task.Model(*task.get_init_inputs())
    kernel = module_of(operator.candidate("cpp", operator.kernel("cpp"))).ModelNew(*task.get_init_inputs())
    torch.manual_seed(3)
    with torch.no_grad():
        for ours, theirs in zip(kernel.parameters(), model.parameters(), strict=True):
            ours.copy_(theirs.normal_())
        inputs = task.get_inputs()
        assert torch.allclose(kernel(*inputs), model(*inputs), 1e-5, 1e-5)


@pytest.mark.parametrize("name", ["softmax", "cumulative-sum", "mean-squared-error", "transpose-scale"])
def test_cuda_kernels_and_their_mutants_build(name: str, tmp_path: Path) -> None:
    backend = CudaBackend(architecture="sm_90")
    if not backend.can_build().ok:
        pytest.skip("NVRTC is not there")
    original = OPERATORS[name].kernel("cuda")
    texts = [original, *(item.text for item in mutants_of(name, original, "cuda", MOST))]
    built = [backend.build(text, tmp_path, DefaultLimits()).ok for text in texts]
    assert built[0]
    assert sum(built) >= 0.9 * len(built)


def question(folder: Path, operator: Operator, kernel: str, kind: str = "") -> dict[str, object]:
    files = {}
    for name, text in (("original", operator.kernel("cpp")), ("mutant", kernel)):
        path = folder / f"{name}.py"
        path.write_text(operator.candidate("cpp", text))
        files[name] = {"file": str(path), "folder": str(folder)}
    return {"operator": operator.name, "kind": kind, **files}


def test_the_search_finds_what_differs_and_nothing_in_what_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    operator = OPERATORS["affine-relu"]
    kernel = operator.kernel("cpp")
    rare = kernel.replace("x[index] *", "fminf(x[index], 30.0f) *")
    same = kernel.replace("weight[column] + bias[column]", "weight[column] + 1.0f * bias[column]")
    crash = kernel.replace("x[index] *", "*(const float*)16 *")
    hang = kernel.replace("  for (int index", '  while (total) asm volatile("");\n  for (int index')
    assert len({kernel, rare, same, crash, hang}) == 5
    with Witness("cpp", seconds=6.0) as witness:
        found = witness.look(question(tmp_path, operator, rare))
        assert found["witnessed"], "differs for values that are rare"
        assert any(label in found["how"] for label in ("normal x 60", "normal x 12", "extreme")), found
        nothing = witness.look(question(tmp_path, operator, same))
        assert not nothing["witnessed"], nothing
        assert nothing["looked"] > 20
        assert "ended" in witness.look(question(tmp_path, operator, crash))["how"]
        assert "no answer" in witness.look(question(tmp_path, operator, hang))["how"]
        assert not witness.look(question(tmp_path, operator, same))["witnessed"], "a new process after a crash"
