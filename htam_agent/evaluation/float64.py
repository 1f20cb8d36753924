"""The reference model in float64: what outputs would be without rounding errors that matter.

A copy of the model is made once, when the task is loaded, with its parameters and buffers in float64. In a trial it
takes the values of the trial's inputs, parameters and buffers (each is exact in float64) and runs in float64. Where
that cannot be done - no memory, an operator without float64, a first call that takes too long, a forward that makes
float32 tensors by itself - `reason` says why, and the float32 result without TF32 takes its place.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from htam_agent.evaluation.free_memory import available_bytes
from htam_agent.evaluation.loading import Inputs, call, first_line, is_out_of_memory
from htam_agent.evaluation.reference_model import ReferenceModel
from htam_agent.evaluation.state import state_tensors
from htam_agent.evaluation.sums import Watched, dtype_bytes, watching
from htam_agent.evaluation.trees import flatten, is_double, unflatten, varies

if TYPE_CHECKING:
    import torch

FIRST_CALL_SECONDS = {"cpu": 2.0, "cuda": 0.5}
"""Longest call that an evaluation can afford at least twice."""
QUICK_SECONDS = 0.02
"""A first call under this is not measured again: later ones are no slower."""


class Unusable(Exception):
    """Float64 cannot be used; the message says why."""


class Float64Model:
    """The reference model's copy in float64. `reason`: why it cannot be used (empty: it can); `seconds` of a call."""

    def __init__(self, reference: ReferenceModel, inputs: Inputs, device: str) -> None:
        self._reference = reference
        self._device = device
        self._count = len(reference.outputs)
        self.applies = any(base_varies(tensor) for tensor in reference.outputs)
        """Whether an output is floating and narrower than float64."""
        self.reason = ""
        self.seconds = 0.0
        self.terms = 1
        """Of the longest sum in its forward."""
        try:
            self._check(inputs)
            self._model = _copied(reference)
            self._state = state_tensors(self._model)[1]
            self._measure(inputs)
        except Unusable as unusable:
            self._give_up(str(unusable))

    def run(
        self, inputs: Inputs, values: Sequence[torch.Tensor], moved_by: int | None = None
    ) -> list[torch.Tensor] | None:
        """The outputs in float64 for the inputs and the state `values`; None, with `reason`, where that failed.

        With `moved_by` (a seed) each floating input is moved by half a unit in its last place, up or down.
        """
        if self.reason:
            return None
        try:
            return self._run(inputs, values, moved_by)
        except Unusable as unusable:
            self._give_up(str(unusable))
            return None

    def _give_up(self, reason: str) -> None:
        import torch

        self.reason = reason
        self._model = torch.nn.Module()
        self._state = []
        if self._device != "cpu":
            torch.cuda.empty_cache()

    def _check(self, inputs: Inputs) -> None:
        if not self.applies:
            raise Unusable("no output is floating and narrower than float64")
        if self._device == "cpu":
            given = sum(tensor.numel() for tensor in flatten(inputs)[1])
            made = sum(tensor.numel() for tensor in self._reference.outputs)
            needed, free = 8 * (given + 3 * max(given, made)), available_bytes()
            if needed > free:
                raise Unusable(f"it needs some {needed / 1e9:.3g} GB where {free / 1e9:.3g} GB are free")

    def _measure(self, inputs: Inputs) -> None:
        """Two calls at most: the first one watched, the second one for its time where the first was slow."""
        limit = FIRST_CALL_SECONDS["cpu" if self._device == "cpu" else "cuda"]
        watched = Watched()
        with watching(watched):
            outputs, self.seconds = self._timed(inputs)
        self.terms = watched.terms
        # For outputs of half types float32 in some places is truth enough: its unit is 2^-13 of theirs.
        floating = [tensor for tensor in self._reference.outputs if base_varies(tensor)]
        if watched.narrow and (watched.half or any(dtype_bytes(tensor) > 2 for tensor in floating)):
            raise Unusable(f"its forward makes float32 values by itself ({', '.join(list(watched.narrow)[:3])})")
        for ours, theirs in zip(outputs, self._reference.outputs, strict=True):
            if ours.shape != theirs.shape or (varies(theirs) and not is_double(ours)):
                raise Unusable("its outputs in float64 have another form")
        del outputs
        if QUICK_SECONDS < self.seconds < 3.0 * limit:
            self.seconds = self._timed(inputs)[1]
        if self.seconds > limit:
            raise Unusable(f"a call takes {self.seconds:.3g} s")

    def _timed(self, inputs: Inputs) -> tuple[list[torch.Tensor], float]:
        import torch

        begin = time.perf_counter()
        outputs = self._run(inputs, self._reference.initial, None)
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)
        return outputs, time.perf_counter() - begin

    def _run(self, inputs: Inputs, values: Sequence[torch.Tensor], moved_by: int | None) -> list[torch.Tensor]:
        import torch

        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.no_grad():
                for tensor, value in zip(self._state, values, strict=True):
                    tensor.copy_(value)
                outputs = call(self._model, widened(inputs, moved_by, copies=any(self._reference.mutated)))
            _, tensors = flatten(outputs)
        except Exception as error:  # the task's own code in a type that it was not written for
            why = f"{type(error).__name__}: {first_line(error)[:200]}"
            raise Unusable("out of memory" if is_out_of_memory(error) else why) from error
        finally:
            torch.set_default_dtype(before)
        if len(tensors) != self._count:
            raise Unusable("its outputs in float64 have another form")
        return [tensor.detach() for tensor in tensors]


def _copied(reference: ReferenceModel) -> torch.nn.Module:
    try:
        return copy.deepcopy(reference.model).double()
    except Exception as error:  # whatever a user's module does when it is copied
        raise Unusable(f"the model cannot be copied: {type(error).__name__}: {first_line(error)[:200]}") from error


def widened(inputs: Inputs, moved_by: int | None = None, *, copies: bool = False) -> Inputs:
    """The inputs with floating tensors in float64 (complex ones in complex128); integers and booleans stay.

    With `moved_by` each floating element is moved by half a unit in the last place of its own type, up or down.
    """
    import torch

    tree, tensors = flatten(inputs)
    wide = []
    for index, tensor in enumerate(tensors):
        if not varies(tensor):
            wide.append(tensor.clone() if copies else tensor)
            continue
        made = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64, copy=copies)
        if moved_by is not None:
            made = _moved(made, torch.finfo(tensor.dtype).eps / 2.0, moved_by + index)
        wide.append(made)
    value = unflatten(tree, wide)
    assert isinstance(value, list | dict)
    return value


def _moved(tensor: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    import torch

    generator = torch.Generator(tensor.device).manual_seed(seed % 2**63)
    signs = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device, dtype=torch.int8)
    return tensor * (1.0 + share * (2.0 * signs.double() - 1.0))


def base_varies(tensor: torch.Tensor) -> bool:
    """Whether float64 can tell more about a tensor than the tensor itself."""
    return varies(tensor) and not is_double(tensor)
