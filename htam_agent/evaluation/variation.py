"""Other values for the inputs of a task, inside the domain that its own inputs come from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from htam_agent.errors import TaskError
from htam_agent.evaluation import families
from htam_agent.evaluation.loading import Inputs, LoadedTask
from htam_agent.evaluation.messages import Prepare
from htam_agent.evaluation.trees import TensorSpec, flat_span, flatten, specs_of, unflatten

if TYPE_CHECKING:
    import torch

ASSERTING = {"aten.binary_cross_entropy", "aten.bernoulli", "aten.multinomial"}
"""Operators that check the domain of floating inputs on the device: a failed check there ends all work of a process."""
DEVICE_CHECKS = "the reference checks the domain of its values on the device"
NATURE_SEED = 2026
HEAD = 4096
"""Elements that tell most draws apart at once."""


class Draws:
    """The values of one task's inputs, from trial to trial."""

    def __init__(self, task: LoadedTask, name: str, specs: Sequence[TensorSpec]) -> None:
        self._task = task
        self._name = name
        self._specs = list(specs)
        self._plain: Inputs = []
        self._other: Inputs | None = None
        self._natures: list[families.Nature] | None = None

    def vary(
        self, order: Prepare, attempt: int = 0, *, asserts: bool = False, distinct: bool = False
    ) -> tuple[Inputs, str]:
        """The inputs that an order asks for, or why there are none: no input bears the family.

        With `asserts` the reference checks values in [0, 1] on the device: only families that stay there are used.
        With `distinct` a family makes no equal values.
        Raises TaskError when the inputs have not the shapes of the first ones.
        """
        if not order.family:
            return self._own(order), ""
        if asserts and order.family not in ("sparse",):
            return [], DEVICE_CHECKS
        return self._member(order, attempt, distinct)

    def _member(self, order: Prepare, attempt: int, distinct: bool) -> tuple[Inputs, str]:
        if attempt == 0:
            self._plain, self._other = [], None
            self._plain = self._draw(order.seed)
        tree, tensors = flatten(self._plain)
        natures = self._known_natures()
        if not any(families.applies(order.family, nature) for nature in natures):
            return [], "no input whose values it may change"
        made = [
            families.member(order.family, tensor, nature, order.seed + index, attempt, distinct=distinct)
            if families.applies(order.family, nature)
            else tensor
            for index, (tensor, nature) in enumerate(zip(tensors, natures, strict=True))
        ]
        value = unflatten(tree, made)
        assert isinstance(value, list | dict)
        return value, ""

    def _known_natures(self) -> list[families.Nature]:
        """What each input can bear, found once from the drawn inputs and one draw more."""
        if self._natures is None:
            others = flatten(self._draw(NATURE_SEED))[1]
            pairs = zip(flatten(self._plain)[1], others, strict=True)
            self._natures = [families.nature_of(first, second) for first, second in pairs]
        return self._natures

    def _own(self, order: Prepare) -> Inputs:
        if order.redraw:
            self._plain, self._other = [], None  # freed before as much again is made
            self._plain = self._draw(order.seed)
        if not order.blend:
            return scaled(self._plain, order.factor)
        if not any(varies(tensor) for tensor in flatten(self._plain)[1]):
            return self._draw(order.seed)  # integers and booleans only: cheap, and their domain is get_inputs' own
        if self._other is None:
            self._other = self._draw(order.seed)
        return blended(self._plain, self._other, order.factor, order.seed)

    def _draw(self, seed: int) -> Inputs:
        inputs = self._task.draw(seed)
        if specs_of(flatten(inputs)[1]) != self._specs:
            raise TaskError(
                f"get_inputs() of the task {self._name!r} gives other shapes on every call.",
                "Make shapes and dtypes the same on every call; only values may vary.",
                "task-inputs",
            )
        return inputs


def dropped(error: TaskError) -> str:
    """Why values of ours cannot be used: the reference's own words. What is no fault of the values is raised again."""
    if error.code != "task-forward":
        raise error
    return f"the reference fails on it: {error.message[:300]}"


def scaled(inputs: Inputs, factor: float) -> Inputs:
    """The inputs with floating tensors multiplied, layouts kept; integers, booleans and plain values stay."""
    if factor == 1.0:
        return inputs
    tree, tensors = flatten(inputs)
    scaled = [_scale(tensor, factor) if tensor.is_floating_point() else tensor for tensor in tensors]
    value = unflatten(tree, scaled)
    assert isinstance(value, list | dict)
    return value


def blended(first: Inputs, second: Inputs, factor: float, seed: int) -> Inputs:
    """Inputs between two draws, times `factor`: each floating tensor with a secret share of its own.

    A mean of two draws keeps every convex domain (signs, bounds, triangles, symmetry, rows that sum to one), and an
    operator whose result does not depend on the scale of its inputs has another result for every share. Integers,
    booleans and plain values come from one of the two draws as a whole. Nothing is written to.
    """
    chance = random.Random(seed)
    tree, kept = flatten(first if chance.random() < 0.5 else second)
    pairs = zip(flatten(first)[1], flatten(second)[1], kept, strict=True)
    mixed = [_blend(ours, theirs, factor, chance) if varies(ours) else whole for ours, theirs, whole in pairs]
    value = unflatten(tree, mixed)
    assert isinstance(value, list | dict)
    return value


def varies(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values may be changed one by one: floating and complex ones."""
    return tensor.is_floating_point() or tensor.is_complex()


def _blend(first: torch.Tensor, second: torch.Tensor, factor: float, chance: random.Random) -> torch.Tensor:
    import torch

    ours, theirs = flat_span(first), flat_span(second)
    share = chance.uniform(0.1, 0.9)
    if torch.equal(ours[:HEAD], theirs[:HEAD]) and torch.equal(ours, theirs):
        # A task that draws the same values every time: their places are all that can vary.
        mixed = ours.roll(chance.randrange(1, max(2, ours.numel()))) * factor
    else:
        mixed = (ours * (factor * share)).add_(theirs, alpha=factor * (1.0 - share))
    return mixed.as_strided(first.shape, first.stride(), 0)


def _scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    flat = flat_span(tensor) * factor
    return flat.as_strided(tensor.shape, tensor.stride(), 0)
