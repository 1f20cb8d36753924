"""Real kernels of the template coder: the plain plan of each task, each strategy alone, and strategies on top of each
other."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import torch

ROOT = Path(__file__).parents[2]
TASKS = [*sorted((ROOT / "tests" / "tasks").glob("*.py")), ROOT / "examples" / "gelu_layernorm.py"]
CONSTANT = {"cpp": "CPP_SRC", "cuda": "CUDA_SRC"}


def load(path: Path, name: str) -> ModuleType:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def template_kernels(
    backend_name: str, device: str, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, torch.nn.Module, list, Callable]]:
    """(name, reference model, inputs maker, kernel's model) for every plan whose name is wanted, renders and builds."""
    from htam_agent.backends.base import DefaultLimits
    from htam_agent.backends.registry import backend
    from htam_agent.coding.lowering import lower
    from htam_agent.coding.render import RenderError
    from htam_agent.coding.template import TemplateCoder, renderer_of
    from htam_agent.memory.seedfiles import load_strategies
    from htam_agent.tracing import trace_model

    strategies = load_strategies(ROOT / "htam_agent" / "memory" / "seed" / "strategies" / backend_name)
    coder, renderer, builder = TemplateCoder(strategies), renderer_of(backend_name), backend(backend_name)
    for task in TASKS:
        module = load(task, f"honest_{task.stem}")
        with torch.device(device):
            model = module.Model(*module.get_init_inputs()).to(device)
            inputs = module.get_inputs()
        operator = trace_model(model, inputs, task.stem)
        program = lower(operator)
        plain, grown = renderer.default_plan(program), renderer.default_plan(program)
        plans = [("plain", plain)]
        for name, strategy in strategies.items():
            if strategy.edit is None:
                continue
            alone = plain.apply(name, strategy.edit, strategy.slot, strategy.more_blocks)
            plans.append((name, alone))
            grown = grown.apply(name, strategy.edit, strategy.slot, strategy.more_blocks)
            plans.append((f"{len(plans)} strategies up to {name}", grown))
        seen = set()
        for name, plan in plans:
            if not wanted(f"template, {task.stem}: {name}"):
                continue
            try:
                source = coder._engine.render(renderer, operator, program, plan, strategies).source
            except (RenderError, KeyError, ValueError):
                continue
            text = next(
                ast.literal_eval(node.value)
                for node in ast.parse(source).body
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == CONSTANT[backend_name]
            )
            if text in seen:
                continue
            seen.add(text)
            folder = Path(tempfile.mkdtemp(prefix="honest"))
            (folder / "kernel.py").write_text(source)
            os.environ["HTAM_KERNEL_DIR"] = str(folder)
            if not builder.build(text, folder, DefaultLimits()).ok:
                continue
            kernel = load(folder / "kernel.py", f"honest_kernel_{len(seen)}").ModelNew(*module.get_init_inputs())
            kernel = kernel.to(device)
            kernel.load_state_dict(model.state_dict())
            yield f"template, {task.stem}: {name}", model, module.get_inputs, kernel
