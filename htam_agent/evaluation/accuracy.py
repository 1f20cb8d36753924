"""The float64 rule: a kernel's error against float64 may be at most a few times the reference's own.

For one floating output let y be the reference's result in float64, r its result at the declared precision, c the
candidate's. With e_c = c - y and e_r = r - y over the elements where all three are finite, s = rms(y) and
u = the distance from 1 to the next number of the output's dtype (2^-23 for float32):

    rms(e_c) / s  <=  max(FACTOR rms(e_r) / s,  floor u)
    max|e_c| / s  <=  max(FACTOR max|e_r| / s,  MAX_SHARE floor u max|y| / s)
    floor = min(HIGHEST_FLOOR, RMS_FLOOR + FLOOR_OF_SUMS n)   (float32; RMS_FLOOR alone for half types)

where n is the number of terms of the longest sum in the reference. Where e_r is zero in every element, the floor is
EXACT_FLOOR instead: such an operator selects, moves or clamps values and rounds nothing, nor need a candidate.

Why relative to the reference: it has the same task, so cancellation, long sums and steep functions show in its error
as in an honest candidate's. Why a floor: a reference may be lucky (exact sums, a correctly rounded function), it sums
in blocks where a plain loop has one accumulator, and a tanh that is made of exponentials has absolute precision only.
The floor is still far under what rounding to a shorter type does to an element. Where such errors average out, in a
long sum of positive terms, the family of random signs (families.py) brings them back. The floor of the maximum grows
with max|y|: that element alone is off by u max|y| / 2 when it is rounded.

Where a candidate fails, the condition of the task is asked before it is condemned (Higham, Accuracy and Stability of
Numerical Algorithms, 1.6): y' is the float64 result of inputs each moved by half a unit in the last place, and FACTOR
times rms(y' - y) and max|y' - y| are allowed as well. A stable algorithm may be as wrong as one rounding of its inputs.

Outputs of few elements (a scalar loss) tell nothing by one error: a reference may be right by chance. Their errors are
pooled over all trials of an evaluation, relative to each trial's own s, and judged at the end by a floor of their own,
FEW_FLOOR + FEW_FLOOR_OF_SUMS sqrt(n): what a shorter type does to them averages out more than that of a plain loop.

FACTOR and the floors are calibrated on honest kernels: benchmarks/honest_errors.py, docs/decisions.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from htam_agent.evaluation.channel import Letter
from htam_agent.evaluation.trees import pieces

if TYPE_CHECKING:
    import torch

FACTOR = 4.0
RMS_FLOOR = {"float32": 64.0, "float16": 2.0, "bfloat16": 2.0}
"""Units in the last place, relative to rms(y): errors up to here are honest whatever the reference's is."""
FLOOR_OF_SUMS = 1.0 / 16.0
"""Units more for each term of the longest sum: one float32 accumulator in a plain loop is off by as much."""
HIGHEST_FLOOR = 512.0
"""Units: a value that was rounded to 10 bits (TF32, float16) is off by some 2000, one of 8 bits by more."""
EXACT_FLOOR = 2.0
"""Units where the reference makes no error: some two roundings of the largest element, none of which is needed."""
MAX_SHARE = 2.0
"""The floor of the largest error, relative to max|y|, in floors of the RMS."""
UNIT = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
FEW = 256
"""Outputs with at most so many elements are judged by errors that are pooled over trials."""
FEW_FLOOR = 32.0
FEW_FLOOR_OF_SUMS = 1.0 / 16.0
"""Units: plain loops over 1000 and 8000 terms are off by 5 and 10; rounding errors of unequal terms grow as sqrt(n)."""
NOISE_FACTOR = 30.0
"""In place of FACTOR where the reference returns noise: it is as large as the order of its summands makes it."""
NOISE = 0.05
"""A reference whose own error is this share of its output returns rounding noise: such a trial proves nothing."""


class Errors(Letter):
    """Errors of one output against float64, relative to rms(y): sums over `count` elements and the largest ones.

    `ours`, `theirs`: sums of squares of the candidate's and the reference's; `peak`: largest |y|; `terms`: n.
    `condition` and `condition_most`: the same two measures of y' - y, 0 where it was not asked for.
    """

    count: int = 0
    ours: float = 0.0
    theirs: float = 0.0
    condition: float = 0.0
    ours_most: float = 0.0
    theirs_most: float = 0.0
    condition_most: float = 0.0
    peak: float = 0.0
    terms: int = 1
    few: bool = False
    """Of outputs with at most FEW elements."""

    def pooled(self, other: Errors) -> Errors:
        """Both together."""
        sums = ("count", "ours", "theirs", "condition")
        return Errors(
            **{
                name: getattr(self, name) + getattr(other, name)
                if name in sums
                else max(getattr(self, name), getattr(other, name))
                for name in Errors.model_fields
            }
        )

    def as_condition(self, share: float) -> Errors:
        """The candidate's errors here, times `share`, as the condition of others."""
        return Errors(
            count=self.count, condition=self.ours * share**2, condition_most=self.ours_most * share, terms=self.terms
        )

    def pooled_condition(self, other: Errors) -> Errors:
        """These errors with the larger of both conditions, for errors of the same elements."""
        most = max(self.condition_most, other.condition_most)
        return self.model_copy(
            update={
                "count": max(self.count, other.count),
                "condition": max(self.condition, other.condition),
                "condition_most": most,
            }
        )

    @property
    def noise(self) -> bool:
        """Whether the reference's output is rounding noise."""
        return self._rms(self.theirs) > NOISE

    def excess(self, dtype: str, *, single: bool = False, floors: bool = True) -> float:
        """The candidate's error over what is allowed for it, RMS or maximum, whichever is worse: above 1 is too much.

        `dtype` is the output's; `single`: y comes from float32, not from float64. Without `floors` only multiples of
        the reference's own error and of the condition are allowed.
        """
        floor = self.floor(dtype, single) * UNIT[dtype] if floors and self.peak > 0.0 else 0.0
        factor = NOISE_FACTOR if self.noise else FACTOR
        own = max(self._rms(self.theirs), self._rms(self.condition))
        most = max(self.theirs_most, self.condition_most)
        return max(
            _ratio(self._rms(self.ours), max(factor * own, floor)),
            _ratio(self.ours_most, max(factor * most, MAX_SHARE * floor * self.peak)),
        )

    @property
    def exact(self) -> bool:
        """Whether the reference makes no error in any element."""
        return self.count > 0 and self.theirs_most == 0.0

    def floor(self, dtype: str, single: bool = False) -> float:
        """The floor in units in the last place; the highest one against float32, whose own error is unknown."""
        if dtype != "float32":
            return RMS_FLOOR[dtype]
        if single:
            return HIGHEST_FLOOR
        if self.exact:
            return EXACT_FLOOR
        if self.few:
            return min(HIGHEST_FLOOR, FEW_FLOOR + FEW_FLOOR_OF_SUMS * math.sqrt(self.terms))
        return min(HIGHEST_FLOOR, RMS_FLOOR[dtype] + FLOOR_OF_SUMS * self.terms)

    def ratios(self, dtype: str) -> tuple[float, float]:
        """The candidate's error in multiples of the reference's (RMS, maximum), each at least half a unit."""
        unit = 0.5 * UNIT[dtype]
        own, most = max(self._rms(self.theirs), unit), max(self.theirs_most, unit * self.peak)
        return _ratio(self._rms(self.ours), own), _ratio(self.ours_most, most)

    def describe(self, dtype: str, single: bool = False) -> str:
        """Both errors in words."""
        against = "float32 without TF32" if single else "float64"
        rms, most = self.ratios(dtype)
        return (
            f"error against {against} {self._rms(self.ours):.3g} of the output's rms (largest {self.ours_most:.3g}), "
            f"{rms:.3g} times (largest {most:.3g} times) the reference's own"
        )

    def _rms(self, squares: float) -> float:
        return math.sqrt(squares / self.count) if self.count else 0.0


def _ratio(value: float, allowed: float) -> float:
    if value == 0.0:
        return 0.0
    return value / allowed if allowed > 0.0 else math.inf


def measure(
    actual: torch.Tensor,
    declared: torch.Tensor,
    exact: torch.Tensor,
    moved: torch.Tensor | None = None,
    terms: int = 1,
) -> Errors:
    """The errors of `actual` (candidate) and `declared` (reference at the declared precision) against `exact`.

    All have one shape and lie on one device; `exact` is float64, or float32 where float64 cannot be used; `moved` is
    the result of inputs that were moved by half a unit. Complex tensors count as pairs. Works in chunks in float64:
    memory of its own is a few chunks. `terms`: of the longest sum in the reference.
    """
    import torch

    if exact.is_complex():
        parts = [torch.view_as_real(t.resolve_conj()) for t in (actual, declared, exact)]
        other = None if moved is None else torch.view_as_real(moved.resolve_conj())
        return measure(parts[0], parts[1], parts[2], other, terms)
    others = [actual, declared] + ([] if moved is None else [moved])
    sums = _Sums()
    for truth, *rest in pieces([exact, *others]):
        sums.add(truth.double(), rest)  # a difference to float64 is one of float64: nothing else is widened
    return sums.errors(terms)


class _Sums:
    """Running sums of squares and maxima, in absolute units."""

    def __init__(self) -> None:
        self.count = 0
        self.square = 0.0
        self.peak = 0.0
        self.squares = [0.0, 0.0, 0.0]
        self.most = [0.0, 0.0, 0.0]

    def add(self, truth: torch.Tensor, others: list[torch.Tensor]) -> None:
        """Takes in one piece; elements where anything is not finite are left out, and compared elsewhere."""
        errors = [other - truth for other in others]
        figures = _figures(truth, errors)
        if not all(math.isfinite(figure) for figure in figures):
            kept = truth.isfinite()
            for error in errors:
                kept = kept & error.isfinite()
            truth, errors = truth[kept], [error[kept] for error in errors]
            if not truth.numel():
                return
            figures = _figures(truth, errors)
        self.count += truth.numel()
        self.square += figures[0]
        self.peak = max(self.peak, figures[1])
        for index in range(len(errors)):
            self.squares[index] += figures[2 + index]
            self.most[index] = max(self.most[index], figures[2 + len(errors) + index])

    def errors(self, terms: int) -> Errors:
        if not self.count:
            return Errors(terms=terms)
        scale = math.sqrt(self.square / self.count) or 1.0
        squares = [value / scale**2 for value in self.squares]
        most = [value / scale for value in self.most]
        return Errors(
            count=self.count,
            ours=squares[0],
            theirs=squares[1],
            condition=squares[2],
            ours_most=most[0],
            theirs_most=most[1],
            condition_most=most[2],
            peak=self.peak / scale,
            terms=terms,
            few=self.count <= FEW,
        )


def _figures(truth: torch.Tensor, errors: list[torch.Tensor]) -> list[float]:
    """Sum of squares and maximum of the truth, sums of squares of the errors, their maxima: each read once and nothing
    written, one transfer for all."""
    import torch

    norms = [torch.linalg.vector_norm(values) for values in (truth, *errors)]
    ends = [end for values in (truth, *errors) for end in torch.aminmax(values)]
    told: list[float] = torch.stack([*norms, *ends]).tolist()
    squares = [norm * norm for norm in told[: len(norms)]]
    lows, highs = told[len(norms) :: 2], told[len(norms) + 1 :: 2]
    most = [max(abs(low), abs(high)) for low, high in zip(lows, highs, strict=True)]
    return [squares[0], most[0], *squares[1:], *most[1:]]
