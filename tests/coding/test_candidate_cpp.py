"""The candidate file as its users meet it: alone in a process, with other sizes, and with what it does not serve."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from htam_agent.backends.flags import CPP_FLAGS
from htam_agent.coding.lowering import lower
from htam_agent.tracing import trace_model
from tests.coding.kernels import error, loaded, rendered, traced
from tests.coding.operators import Function, ResidualNorm, cases


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "candidate-kernels"))


def source_of(module: nn.Module, inputs: list[torch.Tensor]) -> str:
    profile, program = traced(module, inputs)
    return rendered(profile, program, {}, []).source


def test_it_stands_alone(tmp_path: Path) -> None:
    """In a fresh process with nothing of this package on the path, from the cache of a read-only kernel folder."""
    module, inputs = cases(3, 50)["softmax"]
    source = source_of(module, inputs)
    assert "htam_agent" not in source
    namespace = types.ModuleType("candidate")
    exec(compile(source, "candidate.py", "exec"), namespace.__dict__)
    code = namespace.CPP_SRC.encode()
    folder = tmp_path / "ready"
    folder.mkdir()
    binary = folder / (hashlib.sha256(code + b"\0" + b"cpp").hexdigest()[:32] + ".so")
    (folder / "kernel.cpp").write_bytes(code)
    subprocess.run(["g++", *CPP_FLAGS, str(folder / "kernel.cpp"), "-o", str(binary)], check=True)
    (tmp_path / "kernel.py").write_text(
        source + "\nx = torch.randn(7, 50)\nprint((ModelNew()(x) - torch.softmax(x, 1)).abs().max().item() < 1e-6)\n",
        encoding="utf-8",
    )
    environment = {"PATH": "/nonexistent", "HTAM_KERNEL_DIR": str(folder), "HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, str(tmp_path / "kernel.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert run.stdout.strip() == "True", run.stderr


def test_a_source_that_does_not_build_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module, inputs = cases(3, 50)["relu"]
    kernel = loaded(source_of(module, inputs).replace("typedef float real;", "typedef nonsense real;"), module)
    with pytest.raises(RuntimeError, match="nonsense"):
        kernel(*inputs)
    assert not list(tmp_path.rglob("*.so"))


def test_other_sizes_are_served_where_the_plan_allows() -> None:
    module, inputs = cases(3, 50)["relu"]
    kernel = loaded(source_of(module, inputs), module)
    for shape in [(1,), (2, 3, 4), (40000,), ()]:
        x = torch.randn(shape)
        assert torch.equal(kernel(x), torch.relu(x))
    assert kernel(torch.randn(0, 3)).shape == (0, 3)
    norm = ResidualNorm(40)
    kernel = loaded(source_of(norm, [torch.randn(3, 2, 40), torch.randn(3, 2, 40)]), norm)
    assert error(kernel, norm, [torch.randn(9, 2, 40), torch.randn(9, 2, 40)]) < 1e-6
    assert kernel(torch.randn(0, 2, 40), torch.randn(0, 2, 40)).shape == (0, 2, 40)


def test_non_contiguous_inputs() -> None:
    module, _ = cases(3, 50)["softmax"]
    x = torch.randn(50, 3).t()
    assert error(loaded(source_of(module, [x]), module), module, [x]) < 1e-6


def test_what_it_does_not_serve_raises() -> None:
    norm = ResidualNorm(40)
    x = torch.randn(3, 40)
    kernel = loaded(source_of(norm, [x, x]), norm)
    with pytest.raises(ValueError, match="shape"):
        kernel(torch.randn(3, 41), torch.randn(3, 41))
    with pytest.raises(ValueError, match="shape"):
        kernel(x, torch.randn(4, 40))
    with pytest.raises(ValueError, match="float64"):
        kernel(x.double(), x.double())
    with pytest.raises(ValueError, match="meta"):
        kernel(x.to("meta"), x)
    with pytest.raises(TypeError, match="arguments"):
        kernel(x)
    with pytest.raises(RuntimeError, match="gradient"):
        kernel(x.clone().requires_grad_(), x)
    with torch.no_grad():
        kernel(x.clone().requires_grad_(), x)


def test_plain_arguments_are_part_of_the_kernel() -> None:
    module = Function(lambda x, scale, flag: x * scale if flag else x)
    x = torch.randn(3, 4)
    profile = trace_model(module, [x, 2.5, True], "scaled")
    kernel = loaded(rendered(profile, lower(profile), {}, []).source, module)
    assert torch.equal(kernel(x, 2.5, True), x * 2.5)
    with pytest.raises(ValueError, match="argument 1"):
        kernel(x, 3.0, True)


def test_state_and_structured_results() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.second = nn.LayerNorm(6)
            self.first = nn.BatchNorm1d(3)
            self.scale = nn.Parameter(torch.randn(1))

        def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            y = self.second(batch["x"]) * self.scale
            return {"y": y, "total": y.sum(-1)}

    module = Both()
    batch = {"x": torch.randn(2, 3, 6)}
    profile = trace_model(module, [batch], "both")
    program = lower(profile)
    kernel = loaded(rendered(profile, program, {}, []).source, module)
    assert [name for name, _ in kernel.named_parameters()] == [name for name, _ in module.named_parameters()]
    assert list(kernel.state_dict()) == list(module.state_dict())
    with torch.no_grad():
        mine, theirs = kernel(batch), module(batch)
    assert list(mine) == list(theirs)
    for key in theirs:
        torch.testing.assert_close(mine[key], theirs[key])


def test_the_launcher_is_short() -> None:
    module, inputs = cases(3, 50)["relu"]
    text = source_of(module, inputs)
    launcher = text[text.index("@functools.cache") : text.index("def _paths")]
    assert len(launcher.splitlines()) < 120
    assert repr(CPP_FLAGS) in text
