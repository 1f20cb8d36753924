"""Looks for inputs on which a mutant answers something else than the kernel that it was made from.

A process of its own, started by witness.py: a line with a question in, a line with the answer out. It knows nothing of
the evaluator's inputs: sizes and distributions are its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.mutation.operators import OPERATORS
from benchmarks.mutation.small_operator import Operator

ULPS = 64.0
NOISE = 8.0
"""A difference counts beyond 64 units in the last place and beyond 8 times the original's own error to float64."""
OUT_OF_DOMAIN = 1e-3
"""Where the original itself is that far from float64, nothing can be said."""


def _extreme(shape: list[int], generator: torch.Generator) -> torch.Tensor:
    """Normal values with one in fifty a hundred times as large."""
    value = torch.randn(shape, generator=generator)
    return value * torch.where(torch.rand(shape, generator=generator) < 0.02, 100.0, 1.0)


def _sparse(shape: list[int], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.1)


def _ramp(shape: list[int], generator: torch.Generator) -> torch.Tensor:
    count = int(torch.tensor(shape).prod())
    return (torch.arange(count, dtype=torch.float32) / max(1, count) * 8.0 - 4.0).reshape(shape)


Draw = Callable[[list[int], torch.Generator], torch.Tensor]
DRAWS: dict[str, Draw] = {
    "normal": lambda shape, generator: torch.randn(shape, generator=generator),
    "uniform in -2..2": lambda shape, generator: torch.rand(shape, generator=generator) * 4.0 - 2.0,
    "normal x 12": lambda shape, generator: torch.randn(shape, generator=generator) * 12.0,
    "normal x 0.002": lambda shape, generator: torch.randn(shape, generator=generator) * 0.002,
    "normal + 7": lambda shape, generator: torch.randn(shape, generator=generator) + 7.0,
    "normal - 7": lambda shape, generator: torch.randn(shape, generator=generator) - 7.0,
    "extreme values": _extreme,
    "sparse": _sparse,
    "ramp": _ramp,
    "normal x 60": lambda shape, generator: torch.randn(shape, generator=generator) * 60.0,
    "all negative": lambda shape, generator: -torch.rand(shape, generator=generator) - 0.01,
    "tiny": lambda shape, generator: torch.randn(shape, generator=generator) * 1e-6,
}
REPEATS = {"missing barrier": 6, "race": 6, "uninitialised accumulator": 3}
"""Rounds of all draws: what depends on the order of threads may need many looks."""


class Search:
    """The originals, each loaded once, and their inputs."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._originals: dict[str, types.ModuleType] = {}

    def answer(self, question: dict[str, Any]) -> dict[str, object]:
        """Whether a mutant differs, where and by how much."""
        operator = OPERATORS[question["operator"]]
        original = self._original(operator, question["original"])
        mutant = _module(question["mutant"])
        looked, worst = 0, 0.0
        for label, sizes, inputs, parameters in self._inputs(operator, REPEATS.get(question["kind"], 1)):
            expected = self._run(original, operator, sizes, inputs, parameters)
            noise = _distance(expected, self._exact(operator, sizes, inputs, parameters))
            if not noise <= OUT_OF_DOMAIN:
                continue
            found = self._run(mutant, operator, sizes, inputs, parameters, expected)
            looked += 1
            distance = _distance(found, expected)
            worst = max(worst, distance)
            if distance > max(ULPS * 2.0**-23, NOISE * noise):
                own = sizes == operator.sizes
                how = f"{label}, {sizes}: {distance:.3g} off"
                return {"witnessed": True, "own_sizes": own, "how": how, "looked": looked}
        return {"witnessed": False, "how": f"largest difference {worst:.3g}", "looked": looked}

    def _original(self, operator: Operator, file: dict[str, str]) -> types.ModuleType:
        if operator.name not in self._originals:
            self._originals[operator.name] = _module(file)
        return self._originals[operator.name]

    def _inputs(
        self, operator: Operator, rounds: int
    ) -> Iterator[tuple[str, dict[str, int], list[torch.Tensor], list[torch.Tensor]]]:
        """All draws of the task's own sizes, then the others: a fault that only those show is told apart."""
        for place, sizes in enumerate([operator.sizes, *operator.more_sizes]):
            for repeat in range(rounds):
                for number, (label, draw) in enumerate(DRAWS.items()):
                    generator = torch.Generator().manual_seed(1000 * repeat + 10 * number + place + 77)
                    inputs = [self._input(operator, name, sizes, draw, generator) for name in operator.inputs]
                    parameters = [
                        torch.randn(_shape(shape, sizes), generator=generator) for shape in operator.parameters.values()
                    ]
                    yield label, sizes, inputs, parameters

    def _input(
        self, operator: Operator, name: str, sizes: dict[str, int], draw: Draw, generator: torch.Generator
    ) -> torch.Tensor:
        shape = _shape(operator.inputs[name], sizes)
        if name in operator.integers:
            return torch.randint(0, _shape(operator.integers[name], sizes)[0], shape, generator=generator)
        return torch.rand(shape, generator=generator) if name in operator.unit else draw(shape, generator)

    def _run(
        self,
        module: types.ModuleType,
        operator: Operator,
        sizes: dict[str, int],
        inputs: list[torch.Tensor],
        parameters: list[torch.Tensor],
        like: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The output. Memory of the form of `like` is filled and freed right before: the output finds it again, so that
        a kernel that relies on what lay there is not lucky."""
        model = _filled(module.ModelNew(**_arguments(operator, sizes)), parameters).to(self._device)
        moved = [item.to(self._device) for item in inputs]
        with torch.no_grad():
            if like is not None:
                torch.full_like(like, float("nan") if like.is_floating_point() else 77, device=self._device)
            return model(*moved).cpu()

    def _exact(
        self, operator: Operator, sizes: dict[str, int], inputs: list[torch.Tensor], parameters: list[torch.Tensor]
    ) -> torch.Tensor:
        namespace: dict[str, Any] = {}
        exec(operator.task(), namespace)
        model = _filled(namespace["Model"](**_arguments(operator, sizes)), parameters).double()
        wide = [item.double() if item.is_floating_point() else item for item in inputs]
        with torch.no_grad():
            return model(*wide)


def _shape(text: str, sizes: dict[str, int]) -> list[int]:
    return [sizes[word] if word in sizes else int(word) for word in text.replace(",", " ").split()]


def _arguments(operator: Operator, sizes: dict[str, int]) -> dict[str, int]:
    words = {word for shape in operator.parameters.values() for word in shape.replace(",", " ").split()}
    return {name: value for name, value in sizes.items() if name in words}


def _filled(model: torch.nn.Module, values: list[torch.Tensor]) -> torch.nn.Module:
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)
    return model


def _module(file: dict[str, str]) -> types.ModuleType:
    os.environ["HTAM_KERNEL_DIR"] = file["folder"]
    module = types.ModuleType("candidate")
    exec(compile(Path(file["file"]).read_text(encoding="utf-8"), file["file"], "exec"), module.__dict__)
    return module


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest |a - b| / (|b| + rms(b)); infinite where shapes or the places of what is not finite differ."""
    if found.shape != expected.shape:
        return float("inf")
    if not found.is_floating_point():
        return float("inf") if bool((found != expected).any()) else 0.0
    ours, theirs = found.double(), expected.double()
    finite = theirs.isfinite()
    if bool((ours.isfinite() != finite).any()):
        return float("inf")
    ours, theirs = ours[finite], theirs[finite]
    if not ours.numel():
        return 0.0
    scale = float(theirs.square().mean().sqrt())
    return float(((ours - theirs).abs() / (theirs.abs() + scale + 1e-30)).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    search = Search(parser.parse_args().device)
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            answer = search.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - a mutant may fail in any way, and that is a difference too
            answer = {
                "witnessed": True,
                "own_sizes": True,
                "how": f"{type(error).__name__}: {str(error)[:200]}",
                "raised": True,
            }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
