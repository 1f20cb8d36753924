"""Parameters and buffers: their order, other values for them, and how a candidate's are matched to the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from htam_agent.evaluation.messages import StateEntry

if TYPE_CHECKING:
    import torch
    from torch import nn

FLIPPED = 1.0 / 3.0
"""Share of a constant parameter's elements that change their sign."""


def state_tensors(model: nn.Module) -> tuple[list[str], list[torch.Tensor], list[bool]]:
    """Names, tensors and whether each is a parameter: parameters first, then buffers, non-persistent ones included."""
    named = [(name, tensor.detach(), True) for name, tensor in model.named_parameters()]
    named += [(name, tensor.detach(), False) for name, tensor in model.named_buffers()]
    return [name for name, _, _ in named], [tensor for _, tensor, _ in named], [flag for _, _, flag in named]


def changed_values(
    values: Sequence[torch.Tensor], parameters: Sequence[bool], seed: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Other values, mild and bold ones. Floating parameters are redrawn with their own mean and deviation, constant
    ones (ones of a weight, zeros of a bias) are moved by a tenth; buffers stay, since their meaning is unknown.
    The bold ones differ in constants alone: a third of their elements change sign, as a weight may be negative."""
    import torch

    torch.manual_seed(seed)
    changed, bold = [], []
    for value, parameter in zip(values, parameters, strict=True):
        if not parameter or not value.is_floating_point() or value.numel() == 0:
            changed.append(value)
            bold.append(value)
            continue
        wide = value.float()
        spread = float(wide.std(correction=0))
        noise = torch.randn_like(wide)
        fresh = wide + 0.1 * noise if spread == 0.0 else wide.mean() + spread * noise
        changed.append(fresh.to(value.dtype))
        flips = torch.rand_like(wide) < FLIPPED
        bold.append(fresh.where(~flips, -fresh).to(value.dtype) if spread == 0.0 else changed[-1])
    return changed, bold


class StateMismatch(ValueError):
    """A candidate's parameters or buffers do not fit the reference's."""


def match_state(model: nn.Module, entries: Sequence[StateEntry]) -> tuple[list[torch.Tensor | None], str]:
    """The candidate's tensor for each of the reference's entries, and where its state dict's names differ (empty: not).

    Parameters are matched by name where all names are the same, else in order, and there must be as many. A buffer that
    the reference never writes and the candidate lacks (a constant mask) is None. Raises StateMismatch.
    """
    wanted = [entry.name for entry in entries if entry.parameter]
    own = dict(model.named_parameters())
    if len(own) != len(wanted):
        raise StateMismatch(
            f"ModelNew has the parameters {list(own)} where Model has {wanted}: a state dict does not load"
        )
    ordered = [own[name] for name in wanted] if own.keys() == set(wanted) else list(own.values())
    parameters, buffers = iter(ordered), dict(model.named_buffers())
    found = [next(parameters) if entry.parameter else buffers.get(entry.name) for entry in entries]
    for entry, tensor in zip(entries, found, strict=True):
        if tensor is None:
            if entry.changes:
                raise StateMismatch(f"ModelNew has no buffer {entry.name!r}, which Model's forward writes to")
            continue
        if list(tensor.shape) != entry.spec.shape:
            raise StateMismatch(f"{entry.name!r} has shape {list(tensor.shape)} where Model has {entry.spec.shape}")
    return found, _other_names(model, entries)


def _other_names(model: nn.Module, entries: Sequence[StateEntry]) -> str:
    """How the names of the state differ from Model's, for a user who loads a state dict."""
    own = {*model.state_dict(), *(name for name, _ in model.named_buffers())}
    wanted = {entry.name for entry in entries}
    missing, extra = sorted(wanted - own), sorted(own - wanted)
    if not missing and not extra:
        return ""
    return f"ModelNew's state has the names {extra} where Model's has {missing}: parameters load in order, not by name"
