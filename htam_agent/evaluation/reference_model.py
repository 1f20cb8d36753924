"""The reference model with its state: what it returns, and what one call of it changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from htam_agent.evaluation import verify
from htam_agent.evaluation.loading import Inputs, outputs_of
from htam_agent.evaluation.state import state_tensors
from htam_agent.evaluation.trees import Tree, flatten, unflatten
from htam_agent.task import Task

if TYPE_CHECKING:
    import torch
    from torch import nn


class ReferenceModel:
    """One model on its device, observed over one call on `inputs`.

    `names`, `state`, `parameters`: its parameters and buffers in order, and which of them are parameters; `initial`:
    their values as constructed. `changes` and `mutated`: which of them, and which inputs, forward writes to. `outputs`:
    those of the first call, `output_tree` their structure, `finite` whether they are. Raises TaskError when the forward
    fails.
    """

    def __init__(self, task: Task, model: nn.Module, inputs: Inputs) -> None:
        self.task = task
        self.model = model
        self.names, self.state, self.parameters = state_tensors(model)
        self.initial = [tensor.clone() for tensor in self.state]
        tree, tensors = flatten(inputs)
        copies = [tensor.clone() for tensor in tensors]
        given = unflatten(tree, copies)
        assert isinstance(given, list | dict)
        self.output_tree: Tree
        self._attributes = {module: dict(vars(module)) for module in model.modules()}
        self.outputs = self._call(given)
        self.kept = self._kept()
        """Tensors that are no buffers and that forward replaces: each call begins with those of the constructor."""
        with verify.one_thread():
            self.mutated = verify.differ(copies, tensors)
            self.changes = verify.differ(self.state, self.initial)
        self.finite = verify.all_finite(self.outputs)
        given_at = {tensor.untyped_storage().data_ptr() for tensor in copies}
        self.aliases = any(tensor.untyped_storage().data_ptr() in given_at for tensor in self.outputs)
        """Whether an output shares memory with an input, so that a candidate's may as well."""
        self.restore(self.initial)

    @property
    def stateful(self) -> bool:
        """Whether a call leaves inputs or state other than they were."""
        return any(self.mutated) or any(self.changes)

    def forward(self, inputs: Inputs) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs of `inputs`, and the inputs as the call leaves them: the given ones are not written to."""
        given = copy_of(inputs) if any(self.mutated) else inputs
        return self._call(given), flatten(given)[1]

    def restore(self, values: Sequence[torch.Tensor]) -> None:
        """Writes `values` over parameters and buffers, in place."""
        import torch

        with torch.no_grad():
            for tensor, value in zip(self.state, values, strict=True):
                tensor.copy_(value)
        if self.kept:
            for module, before in self._attributes.items():
                vars(module).update(before)

    def _kept(self) -> list[str]:
        import torch

        names = {module: name for name, module in self.model.named_modules()}
        return [
            f"{names[module]}.{key}".lstrip(".")
            for module, before in self._attributes.items()
            for key, value in vars(module).items()
            if isinstance(value, torch.Tensor) and before.get(key) is not value
        ]

    def _call(self, inputs: Inputs) -> list[torch.Tensor]:
        self.output_tree, tensors = flatten(outputs_of(self.task, self.model, inputs))
        return [tensor.detach() for tensor in tensors]


def copy_of(inputs: Inputs) -> Inputs:
    """The same arguments with copies of their tensors."""
    tree, tensors = flatten(inputs)
    copies = unflatten(tree, [tensor.clone() for tensor in tensors])
    assert isinstance(copies, list | dict)
    return copies
