"""Tasks as users write them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from htam_agent.errors import TaskError
from htam_agent.evaluation.loading import LoadedTask, call, draw_like, load_task, outputs_of
from htam_agent.task import Task
from htam_agent.words import Precision

HEAD = "import torch\nfrom torch import nn\n"
MODEL = HEAD + "class Model(nn.Module):\n    def forward(self, x):\n        return x * 2\n"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Loading is made for a worker process: what it changes in this one is put back."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("htam_task", "user_")):
            del sys.modules[name]


def load(tmp_path: Path, text: str, symbol: str = "") -> LoadedTask:
    file = tmp_path / "user_task.py"
    file.write_text(text)
    return load_task(Task.parse(f"{file}:{symbol}" if symbol else str(file)), "cpu", "tf32", 1, [])


def run(task: LoadedTask) -> object:
    return call(task.model, task.draw(3))


INPUTS = {
    "list": "[torch.rand(2, 3)]",
    "tuple": "(torch.rand(2, 3),)",
    "dict": "{'x': torch.rand(2, 3)}",
    "one tensor": "torch.rand(2, 3)",
    "integers": "[torch.randint(0, 9, (2, 3))]",
    "booleans": "[torch.rand(2, 3) > 0.5]",
    "0-d": "[torch.tensor(2.5)]",
    "a plain number": "[3]",
    "non-contiguous": "[torch.rand(3, 2).t()]",
    "on cuda": "[torch.rand(2, 3, device='cuda')]",
    "moved to cuda": "[torch.rand(2, 3).cuda()]",
    "on cuda:0": "[torch.rand(2, 3).to(torch.device('cuda:0'))]",
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_come_in_every_form(tmp_path: Path, name: str) -> None:
    task = load(tmp_path, MODEL + f"def get_inputs():\n    return {INPUTS[name]}\n")
    drawn = task.draw(3)
    value = drawn["x"] if isinstance(drawn, dict) else drawn[0]
    output = run(task)
    if isinstance(value, torch.Tensor):
        assert isinstance(output, torch.Tensor)
        assert output.device.type == "cpu"
        assert torch.equal(output, value * 2)
        assert not torch.equal(value.double(), _first(task.draw(4)).double()) or name == "0-d"
        assert torch.equal(value, _first(task.draw(3)))
    if name == "non-contiguous":
        assert isinstance(value, torch.Tensor)
        assert value.stride() == (1, 2)


def _first(drawn: object) -> torch.Tensor:
    value = next(iter(drawn.values())) if isinstance(drawn, dict) else drawn[0] if isinstance(drawn, list) else None
    assert isinstance(value, torch.Tensor)
    return value


def test_several_modules_helpers_and_constructor_arguments(tmp_path: Path) -> None:
    text = HEAD + (
        "SIZE = 5\n"
        "class Scale(nn.Module):\n    def __init__(self, by): super().__init__(); self.by = by\n"
        "    def forward(self, x): return x * self.by\n"
        "class Model(nn.Module):\n    def __init__(self, by, bias=0):\n        super().__init__()\n"
        "        self.scale = Scale(by)\n        self.register_buffer('shift', torch.full((SIZE,), float(bias)))\n"
        "    def forward(self, x): return self.scale(x) + self.shift, {'raw': x}\n"
        "def get_inputs(): return [torch.ones(2, SIZE)]\n"
    )
    positional = load(tmp_path, text + "def get_init_inputs(): return [3, 1]\n")
    keyword = load(tmp_path, text + "def get_init_inputs(): return {'by': 3, 'bias': 1}\n")
    for task in (positional, keyword):
        output = run(task)
        assert isinstance(output, tuple)
        assert torch.equal(output[0], torch.full((2, 5), 4.0))
        assert isinstance(output[1], dict)
    text = text.replace("class Model(", "class Chosen(") + "def get_init_inputs(): return [2]\n"
    assert type(load(tmp_path, text, "Chosen").model).__name__ == "Chosen"


def test_the_model_and_constants_on_cuda_come_to_the_cpu(tmp_path: Path) -> None:
    text = HEAD + (
        "device = 'cuda' if torch.cuda.is_available() else 'cuda:0'\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = nn.Parameter(torch.ones(3, device=device))\n        self.cuda()\n"
        "    def forward(self, x): return x + self.w + torch.ones(3, device='cuda')\n"
        "def get_inputs(): return [torch.zeros(2, 3).cuda(non_blocking=True)]\n"
        "model = Model().cuda()\n"
    )
    output = run(load(tmp_path, text))
    assert isinstance(output, torch.Tensor)
    assert torch.equal(output, torch.full((2, 3), 2.0))


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_precisions_cast_floating_tensors_only(tmp_path: Path, precision: Precision, dtype: torch.dtype) -> None:
    file = tmp_path / "user_task.py"
    file.write_text(
        HEAD + "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = nn.Parameter(torch.ones(3))\n    def forward(self, x, i): return x[i] * self.w\n"
        "def get_inputs(): return [torch.rand(4, 3), torch.tensor([0, 2])]\n"
    )
    task = load_task(Task.parse(str(file)), "cpu", precision, 1, [])
    drawn = task.draw(1)
    assert isinstance(drawn, list)
    assert [tensor.dtype for tensor in drawn if isinstance(tensor, torch.Tensor)] == [dtype, torch.int64]
    output = run(task)
    assert isinstance(output, torch.Tensor)
    assert output.dtype == dtype


FAULTS = {
    "get_inputs raises": (MODEL + "def get_inputs():\n    y = 1\n    return 1 / (y - 1)\n", "task-inputs", "line 8"),
    "import raises": (MODEL + "def get_inputs(): pass\nraise KeyError('gone')\n", "task-import", "gone"),
    "a missing module": ("import no_such_module_here\n" + MODEL + "def get_inputs(): pass\n", "task-import", "no_such"),
    "the constructor needs more": (
        MODEL + "def get_inputs(): return []\ndef get_init_inputs(): return [1, 2]\n",
        "task-construct",
        "TypeError",
    ),
    "no module": (HEAD + "class Model:\n    pass\ndef get_inputs(): return []\n", "task-kind", "nn.Module"),
    "inputs of a strange kind": (MODEL + "def get_inputs(): return [object()]\n", "task-inputs", "object"),
    "too large": (MODEL + "def get_inputs(): return [torch.zeros(1 << 44)]\n", "task-too-large", "too large"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_task_is_named(tmp_path: Path, name: str) -> None:
    text, code, word = FAULTS[name]
    with pytest.raises(TaskError) as caught:
        load(tmp_path, text).draw(1)
    assert caught.value.code == code
    assert word in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("forward", "code"), [("x @ x", "task-forward"), ("object()", "task-outputs"), ("x.no", "task-forward")]
)
def test_a_forward_that_fails_is_named(tmp_path: Path, forward: str, code: str) -> None:
    text = MODEL.replace("x * 2", forward) + "def get_inputs(): return [torch.rand(2, 3)]\n"
    task = load(tmp_path, text)
    with pytest.raises(TaskError) as caught:
        outputs_of(Task.parse(str(tmp_path / "user_task.py")), task.model, task.draw(1))
    assert caught.value.code == code


def test_a_live_module_gets_inputs_like_its_examples(tmp_path: Path) -> None:
    task = Task.from_module(nn.Linear(4, 2), [torch.randn(3, 4)])
    loaded = load_task(task, "cpu", "tf32", 1, [])
    first, second = loaded.draw(1), loaded.draw(2)
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert not torch.equal(_first(first), _first(second))
    output = call(loaded.model, first)
    assert isinstance(output, torch.Tensor)
    assert output.shape == (3, 2)


def test_a_factory_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_factory.py").write_text(
        HEAD + "def make(): return nn.ReLU(), [torch.rand(2, 2)]\ndef bad(): return 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = load_task(Task.parse("user_factory:make"), "cpu", "tf32", 1, [str(tmp_path)])
    assert _first(loaded.draw(1)).shape == (2, 2)
    with pytest.raises(TaskError) as caught:
        load_task(Task.parse("user_factory:bad"), "cpu", "tf32", 1, [str(tmp_path)])
    assert caught.value.code == "task-factory"


@pytest.mark.parametrize(
    "example",
    [
        torch.rand(50, 4),
        torch.randn(50, 4).t() * 7 + 3,
        torch.randint(2, 9, (50,)),
        torch.rand(50) > 0.9,
        torch.ones(3, 1).expand(3, 5),
        torch.tensor(4.0),
        torch.empty(0, 2),
        torch.randn(5, dtype=torch.complex64),
        torch.rand(8).to(torch.bfloat16),
    ],
)
def test_drawn_tensors_are_like_their_example(example: torch.Tensor) -> None:
    drawn = draw_like(example)
    assert drawn.shape == example.shape
    assert drawn.dtype == example.dtype
    if example.numel() > 15 and not example.is_complex() and not bool((example < 0).any()):
        assert float(drawn.min()) >= float(example.min())
        assert float(drawn.max()) <= float(example.max())
