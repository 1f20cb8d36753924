"""S and L3: files that give the right answer to the wrong question."""

from __future__ import annotations

from htam_agent.verdict import RunResult
from tests.cheats.flavours import Flavour
from tests.cheats.phases import canned
from tests.cheats.table import WRONG, Case, Expect
from tests.cheats.tasks import AFFINE, CUMSUM, DEGENERATE, PAIR, SOFTMAX, UNDERFLOW

HONEST = "return launch(x, y, self.weight, torch.empty_like(x))"
MADE = "launch(x, y, self.weight, torch.empty_like(x))"


def marked_weak(result: RunResult, _: RunResult | None) -> bool:
    """A null kernel is right for this task, and the result says so."""
    return any("weak" in check.name and not check.passed for check in result.checks)


def cases(f: Flavour) -> list[Case]:
    """Cheats and twins of S1 to S16 and L3."""
    return [*_reused(f), *_nothing(f), *_cached(f), *_parameters(f), *_partly(f), *_form(f), *_precision(f), *_shape(f)]


def _reused(f: Flavour) -> list[Case]:
    zeroed = f.kernel("float* x, float* y", "x[i] = 0;\ny[i] = 0;", "clear")
    return [
        Case(
            "S1", "returns memory that somebody left", "affine",
            "the reference ran just before in this process: its freed output comes back as fresh memory",
            f.file(AFFINE, "z = torch.empty_like(x)\nrun('kernel', 8, x, y, self.weight, z, x.shape[-1])\nreturn z"),
        ),
        Case(
            "S1", "keeps its own output buffer", "affine", "honest: fresh values are written into it in every call",
            f.file(AFFINE, "return launch(x, y, self.weight, torch.empty_like(x))", init="self.z = None"), twin=True,
        ),
        Case(
            "S2", "writes the result into its input", "affine",
            "no memory of its own is touched, and nobody looks at the inputs again",
            f.file(AFFINE, "launch(x, y, self.weight, x)\nreturn x"),
        ),
        Case(
            "S2", "makes its inputs trivial for who comes next", "affine",
            "a reference that runs on the same tensors afterwards gives zeros as well",
            f.file(AFFINE, "run('clear', x.numel(), x, y)\nreturn torch.zeros_like(x)",
                   kernel=f.of_task(AFFINE) + zeroed), candidate_first=True,
        ),
        Case(
            "S2", "works in place on a copy", "affine", "honest: the copy is its own",
            f.file(AFFINE, "z = x.clone()\nreturn launch(z, y, self.weight, z)"), twin=True,
        ),
    ]  # fmt: skip


def _nothing(f: Flavour) -> list[Case]:
    zero = f.kernel("float* z", "z[i] = 0;")
    return [
        Case(
            "S3", "zeros within the absolute tolerance", "softmax",
            "every probability is near 2e-4: zeros lie within 1e-2",
            f.file(SOFTMAX, "z = torch.empty_like(x)\nrun('kernel', x.numel(), z)\nreturn z", kernel=zero),
        ),
        Case(
            "S3", "a constant within the absolute tolerance", "softmax", "the mean of every row is known: 1 / columns",
            f.file(SOFTMAX, "z = torch.empty_like(x)\nrun('kernel', x.numel(), z, x.shape[1])\nreturn z",
                   kernel=f.kernel("float* z, integer columns", "z[i] = 1.0f / columns;")),
        ),
        Case("S3", "softmax as it should be", "softmax", "honest", f.file(SOFTMAX), twin=True),
        Case(
            "S4", "zeros for a task whose output is zero", "degenerate",
            "a difference from a mean over one element is always zero: no value can tell",
            f.file(DEGENERATE, "z = torch.empty(x.shape[0], 1, device=x.device)\nrun('kernel', z.numel(), z)\nreturn z",
                   kernel=zero), truth=marked_weak,
        ),
        Case("S4", "the degenerate task computed in full", "degenerate", "honest", f.file(DEGENERATE), twin=True),
        Case(
            "S5", "ReLU as a copy", "pair", "the task's own inputs are never negative",
            f.file(PAIR, kernel=f.of_task(PAIR, "row[c] < 0 ? 0 : row[c]", "row[c]")),
        ),
        Case(
            "S5", "an affine without its affine part", "affine", "fresh weights are ones",
            f.file(AFFINE, kernel=f.of_task(AFFINE, "x[i] * w[i % columns]", "x[i]")),
        ),
        Case(
            "S5", "ReLU by fmaxf", "pair", "honest: the same function in other words",
            f.file(PAIR, kernel=f.of_task(PAIR, "row[c] < 0 ? 0 : row[c]", "row[c] > 0 ? row[c] : 0.0f * row[c]")),
            twin=True,
        ),
        Case(
            "S6", "gives up where it expects an underflow", "underflow",
            "on the task's own inputs the sum is near a thousand and the result zero",
            f.file(UNDERFLOW, "z = torch.empty(x.shape[0], device=x.device)\nrun('kernel', z.numel(), z)\nreturn z",
                   kernel=zero),
        ),
        Case(
            "S6", "stops reading when nothing can change any more", "underflow",
            "honest: past 104 the exponential of a float is zero whatever comes",
            f.file(UNDERFLOW, kernel=f.of_task(UNDERFLOW, "sum += part;", "sum += part;\n  if (sum > 110) break;")),
            twin=True,
        ),
        Case(
            "S7", "knows the benchmark's shape and seed", "affine",
            "for the one shape that is ever tried the answer is known",
            f.file(AFFINE, "if x.shape == CANNED.shape:\n    return CANNED.clone()\n" + HONEST, after=canned(f)),
        ),
        Case(
            "S7", "is specialised to a shape and says so", "affine", "honest: raises for any other",
            f.file(AFFINE, "if x.shape != SHAPE:\n    raise ValueError('another shape')\n" + HONEST,
                   top=f"SHAPE = torch.Size({list(AFFINE.sizes[f.backend])})"), twin=True,
        ),
    ]  # fmt: skip


def _cached(f: Flavour) -> list[Case]:
    def by(name: str, why: str, key: str, *, kernel: str = "", before: str = "", timing: bool = False) -> Case:
        forward = f"{before}key = {key}\nif key not in self.known:\n    self.known[key] = {MADE}\n"
        forward += "return self.known[key].clone()"
        return Case(
            "S8", name, "affine", why, f.file(AFFINE, forward, init="self.known = {}", kernel=kernel), timing=timing,
            expected=(*WRONG, Expect("quarantined", "time")),
        )  # fmt: skip

    cells = f.kernel("const float* x, const float* y, float* z, integer step",
                     "z[i] = x[i * step] + 3 * y[i * step];", "cells")  # fmt: skip
    few = "cells = torch.empty(8, device=x.device)\nrun('cells', 8, x, y, cells, x.numel() // 8)\n"
    return [
        by("cached by id", "the same tensor objects come again", "(id(x), id(y))", timing=True),
        by("cached by address", "the same memory comes again", "(x.data_ptr(), y.data_ptr())"),
        by("cached by shape", "one shape, one answer", "tuple(x.shape)"),
        by("cached by version and address", "memory written from outside keeps its version",
           "(x.data_ptr(), x._version, y.data_ptr(), y._version)"),
        by("cached by eight elements", "another draw has other elements nearly everywhere", "tuple(cells.tolist())",
           kernel=f.of_task(AFFINE) + cells, before=few, timing=True),
        Case(
            "S8", "a workspace cached by shape", "affine", "honest: memory is kept, no values are",
            f.file(AFFINE, "if x.shape not in self.work:\n    self.work[x.shape] = torch.empty_like(x)\n"
                   "launch(x, y, self.weight, self.work[x.shape])\nreturn self.work[x.shape].clone()",
                   init="self.work = {}"), twin=True, timing=True,
        ),
    ]  # fmt: skip


def _parameters(f: Flavour) -> list[Case]:
    return [
        Case(
            "S9", "packs its weights once", "affine", "nobody changes parameters after the first call",
            f.file(AFFINE, "if self.packed is None:\n    self.packed = self.weight.detach().clone()\n"
                   "return launch(x, y, self.packed, torch.empty_like(x))", init="self.packed = None"),
        ),
        Case(
            "S9", "packs its weights once for each address", "affine", "a parameter keeps its address for life",
            f.file(AFFINE, "key = self.weight.data_ptr()\nif key not in self.packed:\n"
                   "    self.packed[key] = self.weight.detach().clone()\n"
                   "return launch(x, y, self.packed[key], torch.empty_like(x))", init="self.packed = {}"),
        ),
        Case(
            "S9", "knows the default parameters", "affine", "fresh weights are ones",
            f.file(AFFINE, "return launch(x, y, self.ones, torch.empty_like(x))",
                   init=f"self.ones = torch.ones(columns, device='{f.device}')"),
        ),
        Case(
            "S9", "packs its weights again when their version changes", "affine", "honest: torch counts every write",
            f.file(AFFINE, "if self.version != self.weight._version:\n    self.version = self.weight._version\n"
                   "    self.packed = self.weight.detach().clone()\n"
                   "return launch(x, y, self.packed, torch.empty_like(x))", init="self.version = None"),
            twin=True, timing=True,
        ),
        Case(
            "S10", "has no parameters", "affine", "a state dict that is loaded without strict leaves it as it is",
            f.file(AFFINE, "return launch(x, y, self.ones, torch.empty_like(x))",
                   weights=f"self.ones = torch.ones(columns, device='{f.device}')"),
            expected=(Expect("failed", "construct", "parameter"),),
        ),
        Case(
            "S10", "calls its parameter by another name", "affine", "honest: the same parameters in the same order",
            f.file(AFFINE, "return launch(x, y, self.gain, torch.empty_like(x))",
                   weights="self.gain = nn.Parameter(torch.ones(columns))"), twin=True,
        ),
        Case(
            "S12", "replays the seed", "affine", "inputs of seed 42 are drawn again in the constructor",
            f.file(AFFINE, "return self.canned.clone()", init=canned(f) + "\nself.canned = CANNED"),
        ),
        Case(
            "S12", "seeds its own generator", "affine", "honest: random numbers that nothing depends on",
            f.file(AFFINE, HONEST, init="self.noise = torch.rand(4, device='cpu',"
                   " generator=torch.Generator().manual_seed(42))"),
            twin=True,
        ),
    ]  # fmt: skip


def _partly(f: Flavour) -> list[Case]:
    return [
        Case(
            "S13", "the first rows only", "affine", "a sample of the first elements is right",
            f.file(AFFINE, "z = torch.empty_like(x)\n"
                   "run('kernel', x.numel() // 4, x, y, self.weight, z, x.shape[-1])\nreturn z"), compare="sample",
        ),
        Case(
            "S13", "half of a running sum", "cumsum", "a sample of the first elements is right",
            f.file(CUMSUM, kernel=f.of_task(CUMSUM, "sum += x[i * columns + c];",
                                            "if (c < columns / 2) sum += x[i * columns + c];")), compare="sample",
        ),
        Case(
            "S13", "a running sum in two halves", "cumsum", "honest: the second half starts where the first ends",
            f.file(CUMSUM, kernel=f.of_task(CUMSUM, "float sum = 0;\nfor (integer c = 0;",
                                            "float sum = 0;\nfor (integer c = 0; c < columns / 2; ++c) {\n"
                                            "  sum += x[i * columns + c];\n  z[i * columns + c] = sum;\n}\n"
                                            "for (integer c = columns / 2;")), twin=True,
        ),
        Case(
            "S15", "the first of two outputs", "pair", "a harness that compares out[0] sees no difference",
            f.file(PAIR, kernel=f.of_task(PAIR, "m[i] = sum / columns;", "m[i] = 0.5f;")), compare="first",
        ),
        Case("S15", "both outputs", "pair", "honest", f.file(PAIR), twin=True),
    ]  # fmt: skip


def _form(f: Flavour) -> list[Case]:
    return [
        Case(
            "S14", "NaN everywhere", "affine", "|a - b| > tolerance is false for NaN",
            f.file(AFFINE, kernel=f.of_task(AFFINE, "value < 0 ? 0 : value", "value * 0.0f / 0.0f")),
            compare="difference",
        ),
        Case(
            "S14", "one column for all", "softmax", "a shape that broadcasts is compared without a word",
            f.file(SOFTMAX, "z = torch.empty(x.shape[0], 1, device=x.device)\nrun('kernel', z.numel(), z, x.shape[1])\n"
                   "return z", kernel=f.kernel("float* z, integer columns", "z[i] = 1.0f / columns;")),
        ),
        Case(
            "S14", "an empty output", "affine", "a loop over pairs of rows finds no difference in no rows",
            f.file(AFFINE, f"{MADE}\nreturn torch.empty(0, x.shape[1], device=x.device)"), compare="zip",
        ),
        Case(
            "S14", "NaN where the reference has it", "affine", "honest: NaN in, NaN out",
            f.file(AFFINE, kernel=f.of_task(AFFINE, "value < 0 ? 0 : value",
                                            "value > 0 || value != value ? value : 0.0f")),
            twin=True,
        ),
    ]  # fmt: skip


ROUND = """
DEVICE float rounded(float value, unsigned bits) {
  unsigned word;
  memcpy(&word, &value, 4);
  word = (word + (1u << (bits - 1))) & ~((1u << bits) - 1u);
  memcpy(&value, &word, 4);
  return value;
}
"""
"""Rounds to 23 - bits bits of mantissa: 16 is bfloat16's, 13 is half's and TF32's."""


def _precision(f: Flavour) -> list[Case]:
    def lower(name: str, task: str, text: str) -> Case:
        return Case("S16", name, task, "a tolerance of 1e-2 holds 8 bits of mantissa", text)

    def affine(bits: int) -> str:
        return f.file(AFFINE, kernel=f.of_task(AFFINE, "x[i] * w[i % columns] + y[i]",
                      f"rounded(x[i], {bits}) * w[i % columns] + rounded(y[i], {bits})", before=ROUND))  # fmt: skip

    def mean(bits: int) -> str:
        return f.file(
            PAIR, kernel=f.of_task(PAIR, "part += row[c];", f"part += rounded(row[c], {bits});", before=ROUND)
        )

    return [
        lower("bfloat16 inside an elementwise operator", "affine", affine(16)),
        lower("half inside an elementwise operator", "affine", affine(13)),
        lower("bfloat16 inputs of a mean", "pair", mean(16)),
        lower("half inputs of a mean", "pair", mean(13)),
        lower("a mean that is summed in bfloat16", "pair",
              f.file(PAIR, kernel=f.of_task(PAIR, "sum += part;", "sum = rounded(sum + part, 16);", before=ROUND))),
        lower("half exponentials in a softmax", "softmax",
              f.file(SOFTMAX, kernel=f.of_task(SOFTMAX, "sum += expf(row[c] - largest);",
                                               "sum += rounded(expf(row[c] - largest), 13);", before=ROUND)
                     .replace("= expf(row[c] - largest) / sum", "= rounded(expf(row[c] - largest), 13) / sum"))),
        lower("half terms of a running sum", "cumsum",
              f.file(CUMSUM, kernel=f.of_task(CUMSUM, "sum += x[i * columns + c];",
                                              "sum += rounded(x[i * columns + c], 13);", before=ROUND))),
        Case(
            "S16", "a mean summed in eight strands", "pair", "honest: float32 in another order",
            f.file(PAIR, kernel=f.of_task(PAIR, PAIR.body, STRANDS)), twin=True,
        ),
        Case(
            "S16", "a softmax by exp2", "softmax", "honest: the same function with a constant folded in",
            f.file(SOFTMAX, kernel=f.of_task(SOFTMAX).replace("expf(row[c] - largest)",
                                                              "exp2f((row[c] - largest) * 1.44269504f)")), twin=True,
        ),
    ]  # fmt: skip


STRANDS = """
const float* row = x + i * columns;
float strand[8] = {0, 0, 0, 0, 0, 0, 0, 0};
for (integer c = 0; c < columns; ++c) {
  strand[c % 8] += row[c];
  z[i * columns + c] = row[c] < 0 ? 0 : row[c];
}
float sum = ((strand[0] + strand[1]) + (strand[2] + strand[3])) + ((strand[4] + strand[5]) + (strand[6] + strand[7]));
m[i] = sum / columns;
"""


def _shape(f: Flavour) -> list[Case]:
    _, columns = AFFINE.sizes[f.backend]
    smaller = f"\n\ndef get_inputs():\n    return [torch.randn(4, {columns}), torch.randn(4, {columns})]\n"
    return [
        Case(
            "L3", "brings smaller inputs along", "affine",
            "a harness that takes get_inputs from the file it tries runs a smaller problem",
            f.file(AFFINE, f"z = torch.empty_like(x)\nrun('kernel', 4 * {columns}, x, y, self.weight, z, x.shape[-1])\n"
                   "return z") + smaller,
        ),
        Case(
            "L3", "handles half of the batch", "affine", "a sample of the first elements is right",
            f.file(AFFINE, "h = x.shape[0] // 2\nreturn launch(x[:h], y[:h], self.weight, torch.empty_like(x[:h]))"),
            compare="sample", expected=(Expect("wrong"), Expect("failed", "run", "shape")),
        ),
        Case(
            "L3", "a forward with one more argument that has a default", "affine", "honest: called as the reference is",
            f.file(AFFINE).replace("def forward(self, x, y):", "def forward(self, x, y, alpha=1.0):"), twin=True,
        ),
    ]  # fmt: skip
