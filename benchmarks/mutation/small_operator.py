"""One small operator with a correct kernel on both backends, described once for the task, the candidates and the
search for a witness."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

from benchmarks.evaluator.files import Backend, kernel_file

TASK = """import torch
from torch import nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__({parameters}):
        super().__init__()
{constructor}

    def forward({inputs}):
{forward}


def get_inputs():
    {sizes}
    return [{drawn}]


def get_init_inputs():
    {sizes}
    return [{arguments}]
"""


@dataclass(frozen=True)
class Operator:
    """`sizes` are the task's; `more_sizes` those on which a witness is searched besides.

    `inputs` and `parameters`: name -> shape, an expression over the sizes. A parameter starts as ones, one in `zeros`
    as zeros (as PyTorch's layers do). `integers`: inputs of int64 below that expression. `unit`: inputs in 0..1.
    `expression`: the body of the task's forward; `forward`: that of the candidate's, where `launch` runs a kernel.
    `cuda`, `cpp`: the kernels' texts.
    """

    name: str
    sizes: dict[str, int]
    inputs: dict[str, str]
    expression: str
    forward: str
    cuda: str
    cpp: str
    parameters: dict[str, str] = field(default_factory=dict)
    zeros: tuple[str, ...] = ()
    integers: dict[str, str] = field(default_factory=dict)
    unit: tuple[str, ...] = ()
    more_sizes: tuple[dict[str, int], ...] = ()

    def kernel(self, backend: Backend) -> str:
        """The correct kernel's text. NVRTC knows no INFINITY without headers."""
        text = (self.cuda if backend == "cuda" else self.cpp).strip() + "\n"
        defined = backend == "cuda" and "INFINITY" in text
        return f"#define INFINITY __int_as_float(0x7f800000)\n{text}" if defined else text

    def task(self) -> str:
        """The task in KernelBench's form."""
        drawn = ", ".join(self._draw(name, shape) for name, shape in self.inputs.items())
        return TASK.format(
            parameters=", ".join(["self", *self._names()]),
            constructor=_body(self._constructor()),
            inputs=", ".join(["self", *self.inputs]),
            forward=_body(self.expression),
            sizes="; ".join(f"{name} = {value}" for name, value in self.sizes.items()),
            drawn=drawn,
            arguments=", ".join(self._names()),
        )

    def candidate(self, backend: Backend, kernel: str) -> str:
        """A candidate file with this text of the kernel."""
        return kernel_file(
            backend,
            kernel,
            forward=self.forward,
            inputs=", ".join(self.inputs),
            parameters=", ".join(self._names()),
            constructor=self._constructor(),
            title=f"{self.name}, a kernel written by hand.",
        )

    def _draw(self, name: str, shape: str) -> str:
        if name in self.integers:
            return f"torch.randint(0, {self.integers[name]}, ({shape},))"
        return f"torch.{'rand' if name in self.unit else 'randn'}({shape})"

    def _names(self) -> list[str]:
        """The sizes that the parameters' shapes need: the constructor's arguments."""
        words = {word for shape in self.parameters.values() for word in shape.replace(",", " ").split()}
        return [name for name in self.sizes if name in words]

    def _constructor(self) -> str:
        return "\n".join(
            f"self.{name} = nn.Parameter(torch.{'zeros' if name in self.zeros else 'ones'}({shape}))"
            for name, shape in self.parameters.items()
        )


def _body(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip() or "pass", " " * 8)


WIDE = {"rows": 61, "columns": 517}
OTHER_WIDE: tuple[dict[str, int], ...] = ({"rows": 3, "columns": 1025}, {"rows": 130, "columns": 33})
"""Sizes that no power of two divides, so that tails exist."""
