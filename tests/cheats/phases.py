"""T6, T7, T11 and T12: files that tell one call from another, or do the work before it."""

from __future__ import annotations

from tests.cheats.flavours import Flavour
from tests.cheats.table import Case, Expect
from tests.cheats.tasks import AFFINE
from tests.cheats.timing import HONEST, as_long_as_honest, slow_kernel

PHASE = """
import sys

def timed():
    frame = sys._getframe(1)
    while frame:
        if any(word in frame.f_code.co_name for word in ("trial", "check", "correct")):
            return False
        frame = frame.f_back
    return True
"""
SLOW_CALL = "self.last = launch(x, y, self.weight, torch.empty_like(x))\nreturn self.last"
SUMS = """
integer row = i * columns;
float sum = 0;
for (integer c = 0; c < columns; ++c) sum += (x[row + c] + 3 * y[row + c]) * (1 + c % 7) + w[c];
z[i] = sum;
"""
MEMO = """
sums = torch.empty(x.shape[0], device=x.device)
run("sums", x.shape[0], x, y, self.weight, sums, x.shape[1])
key = tuple(sums.tolist())
if key not in self.known:
    self.known[key] = launch(x, y, self.weight, torch.empty_like(x))
return self.known[key].clone()
"""


def cases(f: Flavour) -> list[Case]:
    """Cheats and twins of T6, T7, T11 and T12 that the calls themselves show."""
    slow = slow_kernel(f, 300)
    memo_kernel = slow + f.kernel(AFFINE.parameters, SUMS, "sums")
    in_the_open = f.file(AFFINE, kernel=slow)
    return [
        Case(
            "T6", "stale after the third call", "affine",
            "a harness that checks first and then times the same inputs sees the right values, at no cost",
            f.file(AFFINE, f"self.calls += 1\nif self.calls > 3:\n    return self.last\n{SLOW_CALL}",
                   init="self.calls = 0", kernel=slow),
            naive="fast", honest=in_the_open,
        ),
        Case(
            "T6", "stale when no check is on the stack", "affine",
            "the names of the functions that call it say whether it is checked or timed",
            f.file(AFFINE, f"if timed() and self.last is not None:\n    return self.last\n{SLOW_CALL}",
                   init="self.last = None", top=PHASE, kernel=slow),
            expected=(Expect("wrong", "time"),), naive="fast", timing=True, honest=in_the_open,
        ),
        Case(
            "T6", "tunes itself in the first call", "affine", "honest: tries two ways once, and works in every call",
            f.file(AFFINE, "if self.best is None:\n    for way in ('kernel', 'other'):\n"
                   "        run(way, x.numel(), x, y, self.weight, torch.empty_like(x), x.shape[-1])\n"
                   "    self.best = 'other'\nz = torch.empty_like(x)\n"
                   "run(self.best, x.numel(), x, y, self.weight, z, x.shape[-1])\nreturn z",
                   kernel=f.of_task(AFFINE) + f.kernel(AFFINE.parameters, AFFINE.body, "other"),
                   init="self.best = None"),
            twin=True, timing=True, slow=True,
        ),
        Case(
            "T7", "remembers what it has seen, by a checksum of everything", "affine",
            "the values of a timed block are the same in every call: all but the first are answered from memory",
            f.file(AFFINE, MEMO, kernel=memo_kernel, init="self.known = {}"),
            expected=(Expect("wrong"), Expect("quarantined", "time")), naive="fast", timing=True,
            truth=as_long_as_honest, against_honest=True, honest=in_the_open,
        ),
        Case(
            "T7", "allocates its workspace in the first call", "affine", "honest: memory is kept, no values are",
            f.file(AFFINE, "if self.work is None:\n    self.work = torch.empty_like(x)\n"
                   "launch(x, y, self.weight, self.work)\nz = torch.empty_like(x)\nz.copy_(self.work)\nreturn z",
                   init="self.work = None"),
            twin=True, timing=True, slow=True,
        ),
        Case(
            "T12", "drifts after forty calls", "affine", "right as long as anybody checks",
            f.file(AFFINE, "self.calls += 1\nz = " + HONEST.removeprefix("return ")
                   + "\nif self.calls > 40:\n    z[0, 0] = 12.5\nreturn z", init="self.calls = 0"),
            expected=(Expect("wrong", "time"),), timing=True,
        ),
        Case(
            "T12", "counts its calls", "affine", "honest: a counter that nothing depends on",
            f.file(AFFINE, "self.calls += 1\n" + HONEST, init="self.calls = 0"), twin=True,
        ),
        Case(
            "T11", "the answer is made at import, for the seed that everybody uses", "affine",
            "the work lies outside the timed window, and the inputs of seed 42 are known",
            f.file(AFFINE, "return CANNED.clone()", after=canned(f)),
        ),
        Case(
            "T11", "builds tables at import", "affine", "honest: what does not depend on inputs or parameters",
            f.file(AFFINE, "assert TABLE\n" + HONEST, top="TABLE = [index * index for index in range(100000)]"),
            twin=True, timing=True, slow=True,
        ),
    ]  # fmt: skip


def canned(f: Flavour) -> str:
    """Makes the output for the inputs of seed 42 at import, with the kernel itself and default parameters."""
    rows, columns = AFFINE.sizes[f.backend]
    return f"""
torch.manual_seed(42)
KNOWN = [torch.randn({rows}, {columns}, device="{f.device}") for _ in range(2)]
CANNED = launch(*KNOWN, torch.ones({columns}, device="{f.device}"), torch.empty_like(KNOWN[0]))
"""
