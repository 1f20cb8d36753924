"""Where and how a wrong output differs: said by the judge once a comparison has failed, for whoever mends the kernel.

Nothing here decides anything. Looks at no more than LIMIT elements: of a larger output at the rows (first dimension)
round the first wrong one, which the words then say.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from htam_agent.failures import Difference, Pattern

if TYPE_CHECKING:
    import torch

LIMIT = 1 << 22
"""Elements that are looked at: a wrong output costs some 0.1 s more."""
CLOSE = 1e-2
"""Largest relative error of what is called a matter of precision."""
FEW_ROWS = 8
NEARLY_ALL = 0.99


def locate(
    actual: torch.Tensor, expected: torch.Tensor, name: str, share: float, scale: float, trial: str = ""
) -> Difference:
    """The difference between two tensors of one shape: wrong is |a - b| > share (scale + |b|), and NaN or infinities at
    other places. Any dtype; on any device. Nothing is written to."""
    import torch

    actual, expected = actual.detach(), expected.detach()
    if expected.is_complex():
        actual, expected = torch.view_as_real(actual.resolve_conj()), torch.view_as_real(expected.resolve_conj())
    ours, theirs, first = _part(actual, expected)
    wide = [tensor.double() for tensor in (ours, theirs)]
    wrong = _wrong(wide[0], wide[1], share, scale)
    pattern, magnitude = _pattern(wide[0], wide[1], wrong, scale)
    region, at_edge, strided, part = _region(wrong, first)
    if pattern == "scattered":
        pattern = "boundary" if at_edge else "strided" if strided else "part" if part else pattern
        pattern = "everywhere" if int(wrong.sum()) >= NEARLY_ALL * wrong.numel() else pattern
    if ours.shape != actual.shape:
        region += f" (looked at {list(ours.shape)} of {list(actual.shape)}, from index {first} on)"
    return Difference(
        output=name, trial=trial, wrong=int(wrong.sum()), total=wrong.numel(), pattern=pattern, region=region.strip(),
        magnitude=magnitude,
    )  # fmt: skip


def _part(actual: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Both, cut to LIMIT elements by whole rows, and the first row: that of the first difference."""
    if expected.numel() <= LIMIT or not expected.dim():
        return actual, expected, 0
    each = expected.numel() // expected.shape[0]
    rows = max(1, LIMIT // each)
    for start in range(0, expected.shape[0], rows):
        ours, theirs = actual[start : start + rows], expected[start : start + rows]
        if not bool((ours == theirs).all()):
            if each > LIMIT:
                # One row alone is too large: its beginning.
                ours, theirs, _ = _part(ours[0], theirs[0]) if ours.dim() > 1 else (ours[:LIMIT], theirs[:LIMIT], 0)
            return ours, theirs, start
    return actual[:rows], expected[:rows], 0


def _wrong(ours: torch.Tensor, theirs: torch.Tensor, share: float, scale: float) -> torch.Tensor:
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    close = ours.isfinite() & theirs.isfinite() & ((ours - theirs).abs() <= share * (theirs.abs() + scale))
    return ~(same | close)


def _pattern(ours: torch.Tensor, theirs: torch.Tensor, wrong: torch.Tensor, scale: float) -> tuple[Pattern, str]:
    """What the values tell, and how far they are off."""
    if not bool(wrong.any()):
        return "close", "each element alone is within the tolerance, all together are less accurate than allowed"
    bad, good = ours[wrong], theirs[wrong]
    if bool(bad.isnan().all()) and bool(good.isfinite().all()):
        return "unwritten", "all of them are NaN, as memory is that a kernel does not write"
    if not bool((bad.isfinite() & good.isfinite()).all()):
        count = int((~bad.isfinite() | ~good.isfinite()).sum())
        return "not-finite", f"{count} of them are a matter of NaN or infinity: {_example(bad, good)}"
    error = (bad - good).abs()
    relative = error / (good.abs() + scale + 1e-300)
    words = (
        f"largest error {float(error.max()):.3g} where values are up to {float(good.abs().max()):.3g}, "
        f"median error {float(error.median()):.3g}; {_example(bad, good)}"
    )
    if not bool(bad.any()):
        return "zeros", f"all of them are 0; {_example(bad, good)}"
    if float(relative.max()) <= CLOSE:
        return "close", words
    return _relation(bad, good, words) or _order(ours, theirs, words) or ("scattered", words)


def _example(bad: torch.Tensor, good: torch.Tensor) -> str:
    pairs = [f"{float(a):.6g} for {float(b):.6g}" for a, b in zip(bad[:3], good[:3], strict=True)]
    return f"e.g. {', '.join(pairs)}"


def _relation(bad: torch.Tensor, good: torch.Tensor, words: str) -> tuple[Pattern, str] | None:
    """One factor or one summand between both, if it is so."""
    if bad.numel() < 3:
        return None
    largest = good.abs().max()
    large = good.abs() > 0.1 * largest
    if bool(large.any()):
        middle = float((bad[large] / good[large]).median())
        if float((bad - middle * good).abs().max()) <= 1e-3 * abs(middle) * float(largest):
            return "scaled", f"all are {middle:.6g} times what is expected; {words}"
    shift = bad - good
    middle = float(shift.median())
    if float((shift - middle).abs().max()) <= 1e-3 * abs(middle):
        return "shifted", f"all are {middle:+.6g} off; {words}"
    return None


def _order(ours: torch.Tensor, theirs: torch.Tensor, words: str) -> tuple[Pattern, str] | None:
    """Whether the right values stand at wrong places."""
    if theirs.numel() < 3 or not bool(theirs.isfinite().all()):
        return None
    limit = 1e-3 * float(theirs.abs().max())
    if theirs.dim() >= 2:
        turned = theirs.transpose(-1, -2).reshape(theirs.shape)
        if float((ours - turned).abs().max()) <= limit:
            return "transposed", f"the last two dimensions are stored in turned order; {words}"
    difference = (ours.flatten().sort().values - theirs.flatten().sort().values).abs().max()
    if float(difference) <= limit:
        return "misplaced", f"the expected values are all there, at other places; {words}"
    return None


def _region(wrong: torch.Tensor, first: int) -> tuple[str, bool, bool, bool]:
    """Wrong indices by dimension in words; whether they are an end of one, every k-th, or another stretch."""
    if not wrong.dim() or not bool(wrong.any()):
        return "", False, False, False
    said: list[str] = []
    edge = strided = part = False
    for dimension, extent in enumerate(wrong.shape):
        others = [other for other in range(wrong.dim()) if other != dimension]
        touched = wrong.any(dim=others) if others else wrong
        places = touched.nonzero().flatten().tolist()
        offset = first if dimension == 0 else 0
        name = "the last dimension" if dimension == wrong.dim() - 1 else f"dimension {dimension}"
        if len(places) == extent:
            continue
        stretch = places[-1] - places[0] + 1 == len(places)
        step = _step(places)
        at_end = stretch and len(places) <= extent // 2 and (places[-1] == extent - 1 or places[0] == 0)
        edge, strided, part = edge or at_end, strided or step > 1, part or (stretch and not at_end)
        said.append(f"in {name} only {_indices(places, step, stretch, extent, offset)}")
    return ", ".join(said) or "in every dimension at every index", edge, strided, part


def _step(places: Sequence[int]) -> int:
    """k where the indices are every k-th one, at least four of them; else 0."""
    if len(places) < 4:
        return 0
    steps = {later - earlier for earlier, later in itertools.pairwise(places)}
    return steps.pop() if len(steps) == 1 else 0


def _indices(places: Sequence[int], step: int, stretch: bool, extent: int, offset: int) -> str:
    low, high = places[0] + offset, places[-1] + offset
    if len(places) == 1:
        return f"index {low} of {extent}"
    if stretch:
        last = ", the last" if places[-1] == extent - 1 else ", the first" if places[0] == 0 else ""
        return f"{low} to {high}{last} {len(places)} of {extent}" if last else f"{low} to {high} of {extent}"
    if step > 1:
        return f"every {step}th index from {low} on ({len(places)} of {extent})"
    few = ", ".join(str(place + offset) for place in places[:FEW_ROWS])
    return f"{len(places)} of {extent} indices ({few}{', ...' if len(places) > FEW_ROWS else ''})"
