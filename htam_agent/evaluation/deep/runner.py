"""The process of a deep check: makes one candidate's model and calls it on inputs from files. Hostile code runs here.

`python -m htam_agent.evaluation.deep.runner` in a folder with order.json. It is confined by whoever started it; under a
GPU tool, which starts it as a child, it puts landlock on by itself before anything else, or once
CUDA is up where the tool needs that. What it writes into
answers.jsonl is evidence, never a verdict.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.evaluation import flags
from htam_agent.evaluation.confinement import confine
from htam_agent.evaluation.deep.exchange import read_tensors, write_tensors
from htam_agent.evaluation.deep.orders import ANSWERS, INIT, ORDER, READY, STATE, Outcome, RunnerOrder
from htam_agent.evaluation.deep.records import ShapeCase
from htam_agent.evaluation.loading import call, first_line, working_dtype
from htam_agent.evaluation.state import match_state
from htam_agent.evaluation.trees import TensorSpec, Tree, flatten, unflatten

if TYPE_CHECKING:
    import torch
    from torch import nn

MODULE = "htam_candidate"
TRUSTED_BYTES = 1 << 40
"""The files that are read here come from the harness."""


def main() -> None:
    """Entry point of the process: exits with 0 when every case was tried, 3 when the device broke on the way."""
    order = RunnerOrder.model_validate_json(Path(ORDER).read_bytes())
    plan = order.blueprint
    if order.cell is not None and not order.device_first:  # before CUDA starts threads, which would stay outside
        confine(order.cell)
    import torch

    if order.cell is not None and order.device_first:
        torch.zeros(1, device=plan.device)
        confine(order.cell)
    torch.set_num_threads(plan.threads)
    flags.set_declared(plan.precision)
    data = Path(order.data)
    init = read_tensors(data / INIT, order.init, plan.device, TRUSTED_BYTES)
    state = read_tensors(data / STATE, order.state, plan.device, TRUSTED_BYTES)
    with open(ANSWERS, "w", encoding="utf-8") as answers:

        def tell(outcome: Outcome) -> None:
            answers.write(outcome.model_dump_json() + "\n")
            answers.flush()

        tell(Outcome(label=READY, ok=True))
        try:
            model = _construct(order, init)
            held, _ = match_state(model, plan.state)
        except Exception as error:  # noqa: BLE001 - the candidate's own code
            tell(Outcome(label="", ok=False, reason=_words(error)))
            return
        for case in order.cases:
            _load(held, state)
            outcome = _one(order, model, case)
            tell(outcome)
            if outcome.broken:
                answers.close()
                os._exit(3)


def _construct(order: RunnerOrder, init: list[torch.Tensor]) -> nn.Module:
    import torch

    plan = order.blueprint
    module = types.ModuleType(MODULE)
    module.__file__ = order.file
    sys.modules[MODULE] = module
    code = compile(Path(order.file).read_text(encoding="utf-8"), order.file, "exec")
    exec(code, module.__dict__)
    arguments = unflatten(plan.init, init)
    with torch.device(plan.device):
        kind: Callable[..., nn.Module] = module.__dict__["ModelNew"]
        if isinstance(arguments, dict):
            made = kind(**arguments)
        else:
            made = kind(*(arguments if isinstance(arguments, list | tuple) else [arguments]))
    model = made.to(plan.device)
    wanted = working_dtype(plan.precision)
    if wanted is not None:
        model = model.to(wanted)
    return model.train(plan.training)


def _load(held: list[torch.Tensor | None], values: list[torch.Tensor]) -> None:
    import torch

    with torch.no_grad():
        for tensor, value in zip(held, values, strict=True):
            if tensor is not None:
                tensor.copy_(value)


def _one(order: RunnerOrder, model: nn.Module, case: ShapeCase) -> Outcome:
    """One case: called, waited for, its outputs written where they are wanted."""
    import torch

    plan = order.blueprint
    try:
        given = _tensors(Path(order.data), case, plan.device)
        inputs = unflatten(case.inputs, given)
        assert isinstance(inputs, list | dict)
        with torch.no_grad():
            for _ in range(order.repeat):
                outputs = call(model, inputs)
        if plan.device != "cpu":
            torch.cuda.synchronize()
        tree, tensors = flatten(outputs, exact=True, path="the output")
        return _handed_over(order, case, tree, tensors)
    except Exception as error:  # noqa: BLE001 - the candidate's own code
        return Outcome(label=case.label, ok=False, reason=_words(error), broken=_device_is_broken(plan.device))


def _handed_over(order: RunnerOrder, case: ShapeCase, tree: Tree, tensors: list[torch.Tensor]) -> Outcome:
    if not order.keep:
        return Outcome(label=case.label, ok=True)
    name = f"output-{order.cases.index(case)}.bin"
    return Outcome(label=case.label, ok=True, outputs=tree, tensors=write_tensors(Path(name), tensors), file=name)


def _tensors(data: Path, case: ShapeCase, device: str) -> list[torch.Tensor]:
    if case.file:
        return read_tensors(data / case.file, case.tensors, device, TRUSTED_BYTES)
    return [_drawn(spec, device) for spec in case.tensors]


def _drawn(spec: TensorSpec, device: str) -> torch.Tensor:
    """Values for a run whose outputs nobody looks at; zeros where they might be indices."""
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    made = torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device=device)
    return made.normal_() if dtype.is_floating_point else made.zero_()


def _device_is_broken(device: str) -> bool:
    import torch

    if device == "cpu":
        return False
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device=device)
    except RuntimeError:
        return True
    return False


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"[:1000]


if __name__ == "__main__":
    main()
