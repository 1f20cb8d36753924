"""Judging: pure functions on tensors, no processes.

Two tensors agree when shape, dtype and device are the same, infinities lie at the same places, NaN as well (strict;
for the other protocols NaN is never right, as in `torch.allclose`), and every finite element is close. Tolerances by
protocol, t for float32 and for half types:

- `kernelbench`: |a - b| <= t + t |b|, t = 1e-4 and 1e-2 (KernelBench's own `torch.allclose` call).
- `verified`, `verified-fair`: the same form with t = 1e-3 for float32 and 1e-2 for half types.
- `strict`: |a - b| <= t (rms(b) + |b|), t = 1e-4 and 1e-2 (bfloat16 has 8 bits: one rounding is 4e-3) and 1e-10 for
  float64 (a detour through float32 is off by 1e-7), never under four times the reference's own error at the declared
  precision (`allowance`). rms(b), the root of the mean square of the finite expected values, makes the tolerance
  relative to scale: zeros do not pass on an output whose values are tiny, and a term that cancels may still differ by
  the rounding of its parts.

Integers and booleans must be equal. Everything runs in chunks, so that comparing needs little memory of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from htam_agent.evaluation.messages import Finding
from htam_agent.evaluation.trees import TensorSpec, Tree, dtype_name
from htam_agent.words import Protocol

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = {"cpu": 1 << 18, "cuda": 64 << 20}
"""Bytes of one chunk: on a CPU its handful of temporaries stay in the cache, on CUDA a chunk is worth its launches."""
SURELY, LEAST_LIMIT = 1.0 - 2.0**-20, 1e-30
"""An error under SURELY times the smallest limit of all elements is under each element's own, however that is rounded;
limits that small are not compared so, where float32 has few digits left."""
HALF = ("float16", "bfloat16")


def tolerance(protocol: Protocol, dtype: str, allowance: float = 0.0) -> float:
    """Relative tolerance of a protocol for one dtype; `allowance` is the reference's own error (strict only)."""
    half = dtype in HALF
    if protocol == "kernelbench":
        return 1e-2 if half else 1e-4
    if protocol in ("verified", "verified-fair"):
        return 1e-2 if half else 1e-3
    wanted = 1e-2 if half else 1e-10 if dtype == "float64" else 1e-4
    return max(wanted, 4.0 * allowance)


@contextmanager
def one_thread() -> Iterator[None]:
    """Comparing on a CPU inside runs on one thread: measured, cache-sized chunks are as fast as on two, and on a busy
    machine many small parallel regions wait for each other (40 ms became seconds for 16 million elements)."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def compare(
    actual: torch.Tensor,
    expected: torch.Tensor,
    protocol: Protocol,
    allowance: float = 0.0,
    name: str = "output",
    scale: float | None = None,
) -> Finding:
    """Whether one tensor is right under one protocol, and if not, what differs where.

    Both tensors may have any shape, stride and dtype and lie on any device. Nothing is written to. `scale` is
    rms(expected) where it is known already.
    """
    mismatch = compare_form(actual, expected, name)
    if mismatch:
        return Finding(name=name, passed=False, detail=mismatch)
    if expected.is_complex():
        import torch

        actual, expected = torch.view_as_real(actual.resolve_conj()), torch.view_as_real(expected.resolve_conj())
    if not expected.is_floating_point():
        return _compare_exactly(actual, expected, name)
    share = tolerance(protocol, dtype_name(expected.dtype), allowance)
    if protocol != "strict":
        scale = 1.0
    elif scale is None:
        scale = rms(expected)
    worst = Worst()
    for start, ours, theirs in _doubtful(actual, expected, share * scale):
        problem = worst.look(start, ours, theirs, share, scale, equal_nan=protocol == "strict")
        if problem:
            return Finding(name=name, passed=False, detail=f"{name}{_place(problem[0], expected.shape)}: {problem[1]}")
    return worst.finding(name, expected.shape)


def compare_form(actual: torch.Tensor, expected: torch.Tensor, name: str = "output") -> str:
    """What differs in shape, dtype or device; empty when nothing does."""
    if actual.shape != expected.shape:
        return f"{name} has shape {list(actual.shape)} where {list(expected.shape)} is expected"
    if actual.dtype != expected.dtype:
        return f"{name} has dtype {dtype_name(actual.dtype)} where {dtype_name(expected.dtype)} is expected"
    if actual.device.type != expected.device.type:
        return f"{name} lies on {actual.device.type} where {expected.device.type} is expected"
    return ""


def compare_tree(actual: Tree, specs: Sequence[TensorSpec], expected: Tree, tensors: Sequence[torch.Tensor]) -> str:
    """What differs between the claimed structure of an output and the expected one; empty when nothing does.

    Looks at containers, keys, plain values, shapes and dtypes, never at memory.
    """
    if actual.outline() != expected.outline():
        return f"the output is {actual.outline()[:300]} where {expected.outline()[:300]} is expected"
    if len(specs) != len(tensors):
        return f"the output has {len(specs)} tensors where {len(tensors)} are expected"
    for index, (spec, tensor) in enumerate(zip(specs, tensors, strict=True)):
        wanted = TensorSpec(shape=list(tensor.shape), stride=list(tensor.stride()), dtype=dtype_name(tensor.dtype))
        if (spec.shape, spec.dtype) != (wanted.shape, wanted.dtype):
            return f"output {index} is {spec.describe()} where {wanted.describe()} is expected"
    return ""


class Worst:
    """The largest error seen so far, in units of the tolerance."""

    def __init__(self) -> None:
        self.excess = 0.0
        self.index = -1
        self.values = (0.0, 0.0)
        self.wrong = 0

    def look(
        self,
        start: int,
        ours: torch.Tensor,
        theirs: torch.Tensor,
        share: float,
        scale: float,
        *,
        equal_nan: bool = True,
    ) -> tuple[int, str] | None:
        """Takes in one chunk; an answer is a place and a difference that no tolerance covers."""
        error = (ours - theirs).abs_()
        limit = theirs.abs().add_(scale).mul_(share)
        # The usual case. A NaN error falls through, and so does an infinite expectation, whose limit is infinite.
        if bool((error <= limit).all()) and bool(limit.max().isfinite()):
            return None
        odd = ~theirs.isfinite() | ~ours.isfinite()
        if bool(odd.any()):
            same = (ours == theirs) | (ours.isnan() & theirs.isnan() & equal_nan)
            bad = odd & ~same
            if bool(bad.any()):
                place = int(bad.to(ours.dtype).argmax())
                return start + place, f"{float(ours[place])} where {float(theirs[place])} is expected"
            error.masked_fill_(odd, 0.0)
            limit.masked_fill_(odd, 1.0)
        self._note(start, error, limit, ours, theirs)
        return None

    def _note(
        self, start: int, error: torch.Tensor, limit: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor
    ) -> None:
        over = error > limit
        count = int(over.sum())
        if count:
            ratio = error / limit
            place = int(ratio.argmax())
            if float(ratio[place]) > self.excess:
                self.excess, self.index = float(ratio[place]), start + place
                self.values = (float(ours[place]), float(theirs[place]))
        self.wrong += count

    def finding(self, name: str, shape: Sequence[int]) -> Finding:
        """The verdict over all chunks."""
        if not self.wrong:
            return Finding(name=name, passed=True)
        return Finding(
            name=name,
            passed=False,
            detail=(
                f"{self.wrong} of {math.prod(shape)} elements of {name} are off; the worst is "
                f"{name}{_place(self.index, shape)} = {self.values[0]:.8g} where {self.values[1]:.8g} is expected "
                f"({self.excess:.3g} times the tolerance)"
            ),
            excess=self.excess,
        )


def rms(tensor: torch.Tensor) -> float:
    """Root of the mean square of the finite elements; 0 for none. Chunks are summed in float32 where that neither
    overflows nor underflows, and their sums in float64."""
    import torch

    norms = [torch.linalg.vector_norm(values) for _, values, _ in _chunks(tensor, tensor)]
    if not norms:
        return 0.0
    total, count = 0.0, 0
    for norm, (start, finite) in zip(torch.stack(norms).tolist(), _spans(tensor), strict=True):
        part = norm * norm
        if not 1e-25 < part < 1e35:
            wide = tensor.reshape(-1)[start : start + finite].double()
            kept = wide.isfinite()
            part = float(wide.square().masked_fill_(~kept, 0.0).sum())
            finite = int(kept.sum())
        total += part
        count += finite
    return math.sqrt(total / count) if count else 0.0


def all_finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether every floating element is finite."""
    floating = (tensor for tensor in tensors if tensor.is_floating_point())
    with one_thread():
        return all(bool(values.isfinite().all()) for tensor in floating for _, values, _ in _chunks(tensor, tensor))


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest |a - b| / (rms(b) + |b|) over finite elements: the measure of the strict tolerance."""
    scale = rms(expected)
    worst = 0.0
    for _, ours, theirs in _chunks(actual, expected):
        ratio = (ours - theirs).abs() / (theirs.abs() + scale)
        if ratio.numel():
            worst = max(worst, float(ratio.nan_to_num(0.0, 0.0, 0.0).max()))
    return worst


def same_bits(actual: torch.Tensor, expected: torch.Tensor, name: str) -> Finding:
    """Whether two tensors of the same form are equal to the bit (equal NaN included)."""
    import torch

    for start, ours, theirs in _chunks(actual, expected, raw=True):
        if torch.equal(ours, theirs):
            continue
        different = ours != theirs
        if ours.is_floating_point() or ours.is_complex():
            different &= ~(ours.isnan() & theirs.isnan())
        if bool(different.any()):
            place = int(different.byte().argmax())
            values = f"{ours[place].item()} where {theirs[place].item()} was"
            return Finding(name=name, passed=False, detail=f"{name}{_place(start + place, expected.shape)}: {values}")
    return Finding(name=name, passed=True)


def differ(after: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> list[bool]:
    """For each pair, whether any bit changed."""
    return [not same_bits(ours, theirs, "tensor").passed for ours, theirs in zip(after, before, strict=True)]


def _compare_exactly(actual: torch.Tensor, expected: torch.Tensor, name: str) -> Finding:
    wrong = sum(int((ours != theirs).sum()) for _, ours, theirs in _chunks(actual, expected, raw=True))
    if not wrong:
        return Finding(name=name, passed=True)
    found = same_bits(actual, expected, name).detail
    return Finding(name=name, passed=False, detail=f"{wrong} of {expected.numel()} elements differ; first {found}")


def _chunks(
    actual: torch.Tensor, expected: torch.Tensor, raw: bool = False
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """(start, ours, theirs) over flat pieces, half types widened to float32 unless `raw`.

    A non-contiguous tensor is copied once: only such outputs cost memory of their size.
    """
    import torch

    ours, theirs = actual.reshape(-1), expected.reshape(-1)
    widen = not raw and expected.dtype in (torch.float16, torch.bfloat16)
    for start, count in _spans(expected):
        a, b = ours[start : start + count], theirs[start : start + count]
        yield start, (a.float() if widen else a), (b.float() if widen else b)


def _spans(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Where the chunks of a tensor begin, and how many elements each has."""
    most = max(1, CHUNK_BYTES["cpu" if tensor.device.type == "cpu" else "cuda"] // max(1, tensor.element_size()))
    for start in range(0, tensor.numel(), most):
        yield start, min(most, tensor.numel() - start)


def _doubtful(
    actual: torch.Tensor, expected: torch.Tensor, least: float
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """The chunks in which an error is above `least`, the limit of an expected zero, or anything is not finite.

    That nothing is wrong with the others is seen in two passes over the memory instead of a dozen, and with one
    transfer for all of them: what is not finite on either side makes the difference infinite or NaN, which a minimum
    and a maximum hand on.
    """
    import torch

    if least * SURELY < LEAST_LIMIT:
        yield from _chunks(actual, expected)
        return
    ends = [torch.stack(torch.aminmax(ours - theirs)) for _, ours, theirs in _chunks(actual, expected)]
    if not ends:
        return
    sure = [-least * SURELY <= low and high <= least * SURELY for low, high in torch.stack(ends).tolist()]
    if all(sure):
        return
    for fine, chunk in zip(sure, _chunks(actual, expected), strict=True):
        if not fine:
            yield chunk


def _place(index: int, shape: Sequence[int]) -> str:
    """ "[3, 17]": where a flat index lies in a shape."""
    if index < 0 or not shape:
        return ""
    places = []
    for extent in reversed(shape):
        places.append(index % extent)
        index //= extent
    return f"[{', '.join(map(str, reversed(places)))}]"
