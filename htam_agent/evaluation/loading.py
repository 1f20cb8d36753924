"""Loading a task as users write it: KernelBench-form files, factories, pickled modules. Runs in the reference worker.

Everything is made on the target device (torch's default-device context). A file that names another device, such as
`device="cuda"` or `.cuda()` on a machine without a GPU, is rewritten on its syntax tree before it runs: the text on
disk stays, line numbers stay, and nothing is slower at run time.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import random
import re
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.errors import HtamError, TaskError
from htam_agent.evaluation.trees import UnsupportedValue, flatten, map_tensors
from htam_agent.task import EXAMPLE, Task
from htam_agent.words import Precision

if TYPE_CHECKING:
    import torch
    from torch import nn

Inputs = list[object] | dict[str, object]
CUDA_NAME = re.compile(r"cuda(:\d+)?")


class LoadedTask:
    """A task in this process: the model on its device in training mode, and a source of fresh inputs."""

    def __init__(self, model: nn.Module, draw: Callable[[int], Inputs], init: Inputs) -> None:
        self.model = model
        self.draw = draw
        """Fresh inputs from a seed: a list of positional or a dict of keyword arguments, on the device."""
        self.init = init
        """The constructor's arguments."""


def load_task(task: Task, device: str, precision: Precision, seed: int, python_path: list[str]) -> LoadedTask:
    """Loads a task onto a device. Raises TaskError with the line at fault."""
    import torch

    sys.path[:] = list(dict.fromkeys([*sys.path, *python_path]))
    try:
        with torch.device(device):
            if task.kind == "file":
                return _load_file(task, device, precision, seed)
            seed_everything(seed)
            module, inputs = _load_factory(task) if task.kind == "factory" else _load_pickle(task)
            return _from_examples(task, module, inputs, device, precision)
    except HtamError:
        raise
    except Exception as error:
        raise failure(task, "task-load", "cannot be loaded", error) from error


def failure(task: Task, code: str, what: str, error: BaseException) -> TaskError:
    """A TaskError about an exception of the user's code: its type, message and last line in the task's file."""
    if is_out_of_memory(error):
        return TaskError(
            f"The task {task.name!r} is too large for this device: {first_line(error)}",
            "Use smaller inputs or a device with more memory.",
            "task-too-large",
        )
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == task.path:
            place = f" (line {frame.lineno}: {(frame.line or '').strip()})"
    return TaskError(
        f"The task {task.name!r} {what}: {type(error).__name__}: {first_line(error)}{place}.",
        f"Mend {task.path}." if task.kind != "module" else "Check the module and its example inputs.",
        code,
    )


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, at most 500 characters."""
    lines = str(error).strip().splitlines()
    return lines[0][:500].rstrip(".") if lines else "(no message)"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on the CPU or the GPU."""
    import torch

    text = str(error).lower()
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "can't allocate memory" in text
        or "cannot allocate memory" in text
        or "out of memory" in text
    )


def seed_everything(seed: int) -> None:
    """Seeds Python, numpy (where it was imported) and torch on every device."""
    import torch

    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    torch.manual_seed(seed)


def move(value: object, device: str, precision: Precision) -> object:
    """The same nested value with its tensors on the device, floating ones in the type of the precision."""
    return map_tensors(value, lambda tensor: _cast(tensor.detach(), device, precision))


def working_dtype(precision: Precision) -> torch.dtype | None:
    """float16 or bfloat16 for those precisions, None where tensors keep their type."""
    import torch

    return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)


def _cast(tensor: torch.Tensor, device: str, precision: Precision) -> torch.Tensor:
    wanted = working_dtype(precision)
    if wanted is not None and tensor.is_floating_point():
        return tensor.to(device, wanted)
    return tensor.to(device)


class _OtherDevice(ast.NodeTransformer):
    """Replaces CUDA device strings and `.cuda()` calls by the target device."""

    def __init__(self, device: str) -> None:
        self._device = device

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and CUDA_NAME.fullmatch(node.value):
            return ast.copy_location(ast.Constant(self._device), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "cuda":
            to = ast.copy_location(ast.Attribute(function.value, "to", ast.Load()), function)
            return ast.copy_location(ast.Call(to, [ast.copy_location(ast.Constant(self._device), node)], []), node)
        return node


def execute_file(path: Path, name: str, device: str) -> types.ModuleType:
    """Runs a Python file as the module `name`, its device strings pointing to `device` when that is no GPU."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    if device == "cpu":
        tree = ast.fix_missing_locations(_OtherDevice(device).visit(tree))
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    exec(compile(tree, str(path), "exec"), module.__dict__)
    return module


def _load_file(task: Task, device: str, precision: Precision, seed: int) -> LoadedTask:
    seed_everything(seed)
    try:
        module = execute_file(Path(task.path), "htam_task", device)
    except Exception as error:
        raise failure(task, "task-import", "fails when it is imported", error) from error
    init = _arguments(task, module, "get_init_inputs", device, precision)
    try:
        seed_everything(seed)
        model = _construct(getattr(module, task.symbol), init)
    except Exception as error:
        raise failure(task, "task-construct", f"cannot construct {task.symbol}", error) from error
    _check_module(task, model)

    def draw(trial_seed: int) -> Inputs:
        import torch

        with torch.device(device):
            seed_everything(trial_seed)
            return _arguments(task, module, "get_inputs", device, precision)

    return LoadedTask(_placed(model, device, precision), draw, init)


def _arguments(task: Task, module: types.ModuleType, name: str, device: str, precision: Precision) -> Inputs:
    function = getattr(module, name, None)
    if function is None and name == "get_init_inputs":
        return []
    if not callable(function):
        raise TaskError(f"The task file {task.path!r} defines no function `{name}`.", EXAMPLE, "task-incomplete")
    try:
        value = function()
    except Exception as error:
        raise failure(task, "task-inputs", f"fails in {name}()", error) from error
    try:
        return _as_arguments(move(value, device, precision))
    except UnsupportedValue as error:
        raise TaskError(
            f"{name}() of the task {task.name!r} returns something that is no input: {error}.",
            "Return a list, tuple or dict of tensors and plain values.",
            "task-inputs",
        ) from error


def _as_arguments(value: object) -> Inputs:
    """A list of positional or a dict of keyword arguments; a lone tensor or value is one argument."""
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(value)
    return [] if value is None else [value]


def _construct(kind: Callable[..., nn.Module], init: Inputs) -> nn.Module:
    return kind(**init) if isinstance(init, dict) else kind(*init)


def call(model: Callable[..., object], inputs: Inputs) -> object:
    """model(*inputs), or model(**inputs) for a dict."""
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def _check_module(task: Task, model: object) -> None:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise TaskError(
            f"The task {task.name!r} gives a {type(model).__name__} where an nn.Module is needed.", EXAMPLE, "task-kind"
        )


def _placed(model: nn.Module, device: str, precision: Precision) -> nn.Module:
    wanted = working_dtype(precision)
    model = model.to(device)
    return model if wanted is None else model.to(wanted)


def _load_factory(task: Task) -> tuple[object, object]:
    module_name, _, symbol = task.symbol.partition(":")
    pair = getattr(importlib.import_module(module_name), symbol)()
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TaskError(
            f"The factory {task.symbol!r} must return the pair (nn.Module, inputs), and gave {type(pair).__name__}.",
            "Return a tuple of the module and the positional inputs of its forward.",
            "task-factory",
        )
    return pair


def _load_pickle(task: Task) -> tuple[object, object]:
    import pickle

    module, inputs = pickle.loads(task.checked_bytes())
    return module, inputs


def _from_examples(task: Task, model: object, examples: object, device: str, precision: Precision) -> LoadedTask:
    """A task without get_inputs: fresh inputs are drawn like the examples."""
    from torch import nn

    _check_module(task, model)
    assert isinstance(model, nn.Module)
    given = _as_arguments(move(examples, device, precision))

    def draw(trial_seed: int) -> Inputs:
        seed_everything(trial_seed)
        return _as_arguments(map_tensors(given, draw_like))

    return LoadedTask(_placed(model, device, precision), draw, [])


def draw_like(example: torch.Tensor) -> torch.Tensor:
    """A random tensor of the example's shape, stride, dtype and device with values in its range.

    Floating tensors are uniform over [min, max] when no example value is negative (probabilities, weights), else normal
    with the example's mean and deviation; integers uniform over [min, max]; booleans with the example's share of true.
    """
    import torch

    fresh = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=example.device)
    if example.numel() == 0:
        return fresh
    dense = example.double() if not example.is_complex() else example
    if example.is_complex():
        values = torch.randn_like(dense)
    elif example.dtype == torch.bool:
        values = torch.rand_like(dense) < dense.mean()
    elif not example.is_floating_point():
        low, high = int(example.min()), int(example.max())
        values = torch.randint(low, high + 1, example.shape, device=example.device)
    elif bool((example < 0).any()) or float(example.min()) == float(example.max()):
        spread = float(dense.std(correction=0)) or 1.0
        values = torch.randn(example.shape, device=example.device) * spread + float(dense.mean())
    else:
        values = torch.rand(example.shape, device=example.device) * float(dense.max() - dense.min()) + float(
            dense.min()
        )
    with contextlib.suppress(RuntimeError):  # overlapping strides (an expanded example) cannot be written to
        fresh.copy_(values)
        return fresh
    return values.to(example.dtype)


def outputs_of(task: Task, model: nn.Module, inputs: Inputs) -> object:
    """The reference's own outputs. Raises TaskError when its forward raises or returns what cannot be compared."""
    import torch

    try:
        with torch.no_grad():
            value = call(model, inputs)
        flatten(value)
    except UnsupportedValue as error:
        raise TaskError(
            f"forward of the task {task.name!r} returns something that cannot be compared: {error}.",
            "Return tensors, or lists, tuples and dicts of tensors.",
            "task-outputs",
        ) from error
    except Exception as error:
        raise failure(task, "task-forward", "fails in forward", error) from error
    return value
