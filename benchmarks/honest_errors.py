"""How far honest kernels are from float64, in multiples of PyTorch's own error: calibrates FACTOR and the floors.

    python benchmarks/honest_errors.py [--backend cpp|cuda] [--budget-seconds 540] [--out FILE]

Every honest kernel (honest_kernels/) runs on the task's own values and on the drawn families of strict. For each the
error against float64 is measured with the evaluator's own code. The results file holds, for each kernel, its worst
ratios; then quantiles, and how many kernels a choice of FACTOR and floors would have condemned wrongly. Results are
written after each operator, and what is there is not done again.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from honest_kernels.operators import all_operators  # noqa: E402
from honest_kernels.templates import template_kernels  # noqa: E402

from htam_agent.evaluation import accuracy, families  # noqa: E402
from htam_agent.evaluation.accuracy import FEW, Errors, measure  # noqa: E402
from htam_agent.evaluation.float64 import widened  # noqa: E402
from htam_agent.evaluation.sums import Watched, watching  # noqa: E402
from htam_agent.evaluation.trees import dtype_name  # noqa: E402

CASES = ("", "", *families.FAMILIES)
FACTORS = (2.0, 3.0, 4.0, 6.0, 8.0)
FLOORS = (4.0, 16.0, 32.0, 64.0, 128.0)
SUMS = (0.0, 1.0 / 64.0, 1.0 / 32.0, 1.0 / 16.0)
Call = Callable[..., torch.Tensor]


def cases(draw: Callable[[], Sequence[torch.Tensor]], device: str) -> list[tuple[str, list[torch.Tensor]]]:
    """The inputs of every case: own values twice, then one member of each family, from fixed seeds."""
    made = []
    with torch.device(device):
        torch.manual_seed(1)
        natures = [families.nature_of(x, y) for x, y in zip(draw(), draw(), strict=True)]
        for number, family in enumerate(CASES):
            torch.manual_seed(100 + number)
            inputs = list(draw())
            if family:
                inputs = [
                    families.member(family, x, nature, 7 * number + place, 0) if families.applies(family, nature) else x
                    for place, (x, nature) in enumerate(zip(inputs, natures, strict=True))
                ]
            made.append((family or "own values", inputs))
    return made


def figures(name: str, way: Call, known: list, terms: int) -> dict[str, object]:
    """What one kernel's errors are over all cases. Outputs of few elements are pooled, as the evaluator does."""
    each: list[tuple[str, Errors]] = []
    dtype = "float32"
    for case, inputs, (reference, exact, moved) in known:
        if not bool(reference.isfinite().all()):
            continue
        with torch.no_grad():
            actual = way(*[tensor.clone() for tensor in inputs])
        dtype = dtype_name(actual.dtype)
        each.append((case, measure(actual, reference, exact, moved, terms)))
    if each[0][1].count <= FEW:
        each = [pair for pair in each if pair[0] not in families.EQUAL_TERMS]
        total = each[0][1]
        for _, errors in each[1:]:
            total = total.pooled(errors)
        each = [("all cases together", total)]
    ruled = [pair for pair in each if pair[0] not in families.EQUAL_TERMS]  # the others: by the tolerance alone
    worst = max(ruled, key=lambda pair: pair[1].excess(dtype))
    unit = accuracy.UNIT[dtype]
    return {
        "kernel": name,
        "terms": terms,
        "rms_ratio": max(e.ratios(dtype)[0] for _, e in each),
        "max_ratio": max(e.ratios(dtype)[1] for _, e in each),
        "rms_ulps": max((e.ours / e.count) ** 0.5 / unit for _, e in each),
        "excess": worst[1].excess(dtype),
        "worst_case": worst[0],
        "cases": [
            {"case": case, "rms": [(s / e.count) ** 0.5 / unit for s in (e.ours, e.theirs, e.condition)],
             "max": [m / unit / max(e.peak, 1e-30) for m in (e.ours_most, e.theirs_most, e.condition_most)]}
            for case, e in each
        ],
    }  # fmt: skip


def condemned(kernels: Sequence[dict[str, object]], factor: float, floor: float, term: float, condition: bool) -> int:
    """Kernels that some case would call wrong by a floor of `floor` ulps and `term` more for each term of a sum."""

    def wrong(case: dict[str, list[float]], terms: int) -> bool:
        whole = min(accuracy.HIGHEST_FLOOR, floor + term * terms)
        for kind, least in (("rms", whole), ("max", accuracy.MAX_SHARE * whole)):
            ours, theirs, moved = case[kind]
            if ours > max(factor * theirs, factor * moved * condition, least):
                return True
        return False

    return sum(
        any(wrong(case, kernel["terms"]) for case in kernel["cases"] if case["case"] not in families.EQUAL_TERMS)
        for kernel in kernels
    )


def summary(kernels: Sequence[dict[str, object]]) -> dict[str, object]:
    """Quantiles over kernels, and a table of what each choice would have condemned."""
    quantiles = {}
    for name in ("rms_ratio", "max_ratio", "rms_ulps", "excess"):
        values = sorted(float(kernel[name]) for kernel in kernels)
        quantiles[name] = {
            q: values[min(len(values) - 1, int(float(q) * len(values)))] for q in ("0.5", "0.9", "0.99", "1")
        }
    table = [
        {"factor": f, "rms_floor_ulps": g, "ulps_per_term": t, "with_condition": c,
         "condemned": condemned(kernels, f, g, t, c)}
        for f in FACTORS for g in FLOORS for t in SUMS for c in (False, True)
    ]  # fmt: skip
    chosen = {"factor": accuracy.FACTOR, "rms_floor": accuracy.RMS_FLOOR, "ulps_per_term": accuracy.FLOOR_OF_SUMS,
              "highest": accuracy.HIGHEST_FLOOR, "max_share": accuracy.MAX_SHARE}  # fmt: skip
    return {"kernels": len(kernels), "chosen": chosen, "quantiles": quantiles, "table": table}


def with_moved(
    reference: Call, exact: Call, draw: Callable[[], Sequence[torch.Tensor]], device: str
) -> tuple[list, int]:
    """For each case its inputs, and the reference's result, the float64 one, and that of moved inputs; and the number
    of terms of the longest sum."""
    known = []
    watched = Watched()
    with torch.no_grad():
        for case, inputs in cases(draw, device):
            wide, moved = widened(inputs), widened(inputs, 5)
            with watching(watched):
                truth = exact(*wide)
            known.append((case, inputs, (reference(*inputs), truth, exact(*moved))))
    return known, watched.terms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("cpp", "cuda"), default="cpp")
    parser.add_argument("--budget-seconds", type=float, default=540.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cpu" if options.backend == "cpp" else "cuda"
    prefix = "cpu" if device == "cpu" else "h200"
    out = options.out or Path(__file__).parent / "results" / f"{prefix}-honest-errors.json"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    found = json.loads(out.read_text())["kernels"] if out.exists() else []
    done = {kernel["kernel"] for kernel in found}
    begin = time.monotonic()
    deadline = begin + options.budget_seconds

    def keep() -> None:
        names = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
        out.write_text(json.dumps({"summary": summary(found), **names, "kernels": found}, indent=1) + "\n")

    def templates(kind: str) -> None:
        before: tuple[object, list, int] = (None, [], 1)

        def wanted(name: str) -> bool:
            return name.endswith(kind) and name not in done and time.monotonic() < deadline

        for name, model, draw, kernel in template_kernels(options.backend, device, wanted):
            if before[0] is not model:
                before = (model, *with_moved(model, copy.deepcopy(model).double(), draw, device))
            found.append(figures(name, kernel, before[1], before[2]))
            done.add(name)
            keep()

    # A GPU's own kernels first: the sums by hand take thousands of launches each, and a short budget ends in them.
    for kind in (": plain", "") if options.backend == "cuda" else ():
        deadline = begin + options.budget_seconds * (0.3 if kind else 0.6)
        templates(kind)
    deadline = begin + options.budget_seconds
    for name, operator in all_operators().items():
        wanted = {way: call for way, call in operator.ways.items() if f"{name}: {way}" not in done}
        if not wanted or time.monotonic() > deadline:
            continue
        known, terms = with_moved(operator.reference, operator.reference, operator.draw, device)
        found += [figures(f"{name}: {way}", call, known, terms) for way, call in wanted.items()]
        keep()
        print(f"{len(found)} kernels, {name}", flush=True)
    templates("")
    print(json.dumps(summary(found)["quantiles"], indent=1))
    print(f"{len(found)} kernels; beyond the rule: {[k['kernel'] for k in found if k['excess'] > 1.0]}")


if __name__ == "__main__":
    main()
