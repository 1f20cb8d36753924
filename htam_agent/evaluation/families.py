"""Drawn families of inputs: other values than a task's own, in which faults show that its own values hide.

- `scale`: everything times a factor, log-uniform over four decades (two and a half for half types): missing epsilons,
  overflow, thresholds, results that do not depend on the input.
- `shift`: a constant of one to four deviations added: one-sided inputs, means that were taken for zero.
- `sign`: a random sign for every element: ReLU or abs as identity on positive inputs.
- `sparse`: most elements zero: empty rows, wrong identities of a reduction.
- `extreme-rows`: a few rows ten to a hundred times as large, one zero, one tiny, two negative, a few whose largest or
  smallest value lies at an end: maxima and their identities, dropped tails, overflow, early exits. Of tensors with
  more than two axes a whole plane (all but the leading axes) is negative and one is tiny: windows span rows.

All parameters are secret: they come from the trial's seed. Each tensor gets its own, and only what it can bear. Two
draws of the task tell what that is (`Nature`): integers, booleans, constants (masks, the same in every draw), floating
tensors of few values (targets, masks as numbers), rows that sum to one, and overlapping memory are left alone; zeros
that both draws have at the same places (triangular, banded) stay; a symmetric tensor stays symmetric. Whether the
reference still means anything on the values, its own finiteness says: see trials.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from htam_agent.evaluation.messages import Family

if TYPE_CHECKING:
    import torch

FAMILIES: tuple[Family, ...] = ("scale", "shift", "sign", "sparse", "extreme-rows")
EQUAL_TERMS: tuple[Family, ...] = ("sparse",)
"""Families that make thousands of equal terms: (0 - mean)^2, exp(0). Adding one number again and again rounds the same
way each time, so that a plain loop over n of them is off by up to n / 6 units in the last place where it is off by some
sqrt(n) else. Its error says nothing of a shorter type then: such trials are judged by the tolerance alone."""
SCALE_DECADES = (-2.0, 2.0)
"""Not lower: formulas like 2 sigmoid(2 x) - 1 for tanh(x) keep absolute precision only, and are honest."""
HALF_DECADES = (-1.5, 1.0)
ENDS = ((-1, 1.0), (0, 1.0), (-1, -1.0), (0, -1.0))
"""Ends of a row and the sign of what is put there."""
TINY = 2.0**-13
"""Factor of a tiny row: a power of two, and no smaller than what half types hold."""
LEAST_PLANES = 4
PLANE_SIZES = (4.0, 12.0)
"""Factors of a negative plane: beyond thresholds of a few deviations, and not so large that its elements alone decide
what counts as an error of the whole output."""
FEW_VALUES = 4
"""Floating tensors with at most so many different values are targets or masks."""
SAMPLE = 4096
"""Elements that are looked at first."""


@dataclass(frozen=True)
class Nature:
    """What a family may do to a tensor. `free`: change it at all; `zeros`: some places stay zero."""

    free: bool
    zeros: bool = False
    symmetric: bool = False


def nature_of(first: torch.Tensor, second: torch.Tensor) -> Nature:
    """The nature of an input by two draws of it, of one shape and dtype, any device."""
    import torch

    if not first.is_floating_point() or first.numel() == 0 or _overlaps(first):
        return Nature(free=False)
    if torch.equal(first, second) or _few_values(first) or _sums_to_one(first):
        return Nature(free=False)
    zeros = bool(((first == 0) & (second == 0)).any())
    return Nature(free=True, zeros=zeros, symmetric=_symmetric(first) and _symmetric(second))


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(step == 0 and extent > 1 for step, extent in zip(tensor.stride(), tensor.shape, strict=True))


def _few_values(tensor: torch.Tensor) -> bool:
    import torch

    sample = tensor.reshape(-1)[:SAMPLE]
    values = torch.unique(sample)
    if len(values) > FEW_VALUES or len(values) == sample.numel():
        return False
    return bool(torch.isin(tensor, values).all())


def _sums_to_one(tensor: torch.Tensor) -> bool:
    if tensor.ndim == 0 or tensor.shape[-1] < 2:
        return False
    sums = tensor.reshape(-1, tensor.shape[-1])[:SAMPLE].double().sum(-1)
    slack = 1e-2 if tensor.element_size() == 2 else 1e-4
    return bool(((sums - 1.0).abs() < slack).all())


def _symmetric(tensor: torch.Tensor) -> bool:
    import torch

    if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2:
        return False
    if not torch.equal(tensor[..., :8, :], tensor[..., :8].transpose(-1, -2)):
        return False
    return torch.equal(tensor, tensor.transpose(-1, -2))


def applies(family: Family, nature: Nature) -> bool:
    """Whether a family has something to do on such a tensor that leaves it what it is."""
    return nature.free and not (nature.symmetric and family in ("sparse", "extreme-rows"))


def member(
    family: Family, tensor: torch.Tensor, nature: Nature, seed: int, attempt: int, *, distinct: bool = False
) -> torch.Tensor:
    """A new tensor of the same shape, stride and dtype: `tensor` under the family with the seed's parameters.

    Later attempts are milder: nearer to the task's own values. `distinct`: tiny values stand where zeros would, so that
    no two elements become equal by it (for tasks that ask for places). The tensor itself is not written to.
    """
    chance = random.Random(f"{family} {seed}")
    milder = 1.0 / (1 << attempt)
    made = _MAKERS[family](tensor, nature, chance, milder, TINY if distinct else 0.0)
    if nature.zeros and family in ("shift", "extreme-rows"):
        made.masked_fill_(tensor == 0, 0)
    return _laid_out_like(made, tensor)


def _scale(tensor: torch.Tensor, nature: Nature, chance: random.Random, milder: float, least: float) -> torch.Tensor:
    low, high = HALF_DECADES if tensor.element_size() == 2 else SCALE_DECADES
    return tensor * float(10.0 ** (milder * chance.uniform(low, high)))


def _shift(tensor: torch.Tensor, nature: Nature, chance: random.Random, milder: float, least: float) -> torch.Tensor:
    spread = _spread(tensor)
    way = chance.choice((-1.0, 1.0)) if milder == 1.0 else 1.0  # a domain of positive values bears only one of them
    return tensor + way * milder * spread * float(4.0 ** chance.random())


def _spread(tensor: torch.Tensor) -> float:
    """The deviation of a tensor's first elements; 1 where there is none."""
    import torch

    return float(torch.std(tensor.reshape(-1)[: 1 << 20].float(), correction=0)) or 1.0


def _sign(tensor: torch.Tensor, nature: Nature, chance: random.Random, milder: float, least: float) -> torch.Tensor:
    if nature.symmetric:
        return -tensor
    return tensor.where(_chosen(tensor, 0.5, chance), -tensor)


def _sparse(tensor: torch.Tensor, nature: Nature, chance: random.Random, milder: float, least: float) -> torch.Tensor:
    kept = _chosen(tensor, 1.0 - milder * (1.0 - chance.uniform(0.02, 0.2)), chance)
    return tensor.where(kept, tensor * least) if least else tensor * kept


def _extreme_rows(
    tensor: torch.Tensor, nature: Nature, chance: random.Random, milder: float, least: float
) -> torch.Tensor:
    """Rows of the last axis, elements of a vector. What may be out of domain (a zero row, negative rows and planes,
    extremes at the ends of rows) in the first attempt only."""
    import torch

    shape = tensor.shape[:-1] if tensor.ndim > 1 else tensor.shape
    rows = shape.numel()
    factors = torch.ones(rows, dtype=torch.float32)
    most = 10.0 if tensor.element_size() == 2 else 100.0
    for _ in range(min(rows, 3)):
        factors[chance.randrange(rows)] = most ** (milder * chance.uniform(0.5, 1.0))
    if milder == 1.0:
        factors[chance.randrange(rows)] = least
    plain = [row for row, factor in enumerate(factors[: 1 << 12].tolist()) if factor == 1.0]
    factors = factors.to(tensor.device, tensor.dtype).reshape(shape)
    made = tensor * (factors.unsqueeze(-1) if tensor.ndim > 1 else factors)
    if tensor.ndim == 1 or milder != 1.0:
        return made
    made = _odd_rows(made, tensor, plain, chance, most)
    return _odd_planes(made, tensor, chance) if tensor.ndim > 2 else made


def _odd_rows(
    made: torch.Tensor, tensor: torch.Tensor, rows: Sequence[int], chance: random.Random, most: float
) -> torch.Tensor:
    """Among `rows`: a negative row, a large negative one, a tiny one, and rows whose largest or smallest value lies at
    an end: wrong identities of a maximum, dropped tails of one, thresholds that rows of one sign or size show."""
    made = made.contiguous()
    flat, given = made.view(-1, made.shape[-1]), tensor.reshape(-1, tensor.shape[-1])
    spread = _spread(tensor)
    for kind, row in enumerate(chance.sample(rows, min(len(rows), 3 + 2 * len(ENDS)))):
        if kind < 2:
            # One deviation off zero, no more: one pass for mean and variance is honest, and loses (mean / deviation)^2.
            size = 1.0 if kind == 0 else most ** chance.uniform(0.75, 1.0)
            flat[row] = -size * (given[row].abs() + spread)
        elif kind == 2:
            flat[row] = given[row] * TINY
        else:
            place, way = ENDS[kind % len(ENDS)]
            flat[row, place] = way * spread * chance.uniform(5.0, 8.0)
    return made


def _odd_planes(made: torch.Tensor, tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """Of at least four planes (the last two axes) a negative one and a tiny one: what a window, or a reduction over
    several axes, sees of rows is mixed with their neighbours."""
    shape = (-1, *made.shape[-2:])
    flat, given = made.view(shape), tensor.reshape(shape)
    if len(flat) >= LEAST_PLANES:
        negative, tiny = chance.sample(range(len(flat)), 2)
        flat[negative] = -chance.uniform(*PLANE_SIZES) * (given[negative].abs() + _spread(tensor))
        flat[tiny] = given[tiny] * TINY
    return made


def _chosen(tensor: torch.Tensor, share: float, chance: random.Random) -> torch.Tensor:
    """A random mask of the tensor's shape in which about `share` of the elements are true."""
    import torch

    generator = torch.Generator(tensor.device).manual_seed(chance.getrandbits(62))
    drawn = torch.randint(0, 256, tensor.shape, generator=generator, device=tensor.device, dtype=torch.uint8)
    return drawn < max(1, round(256 * share))


def _laid_out_like(made: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    import torch

    if made.stride() == tensor.stride() and made.dtype == tensor.dtype and made.storage_offset() == 0:
        return made
    placed = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return placed.copy_(made)


_MAKERS = {"scale": _scale, "shift": _shift, "sign": _sign, "sparse": _sparse, "extreme-rows": _extreme_rows}
