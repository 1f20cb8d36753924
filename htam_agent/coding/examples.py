"""Example requests: what `htam prompts check` renders prompts with, so that a fault shows before a run pays for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from htam_agent.coding.base import BestSoFar, CodeRequest, RepairRequest
from htam_agent.coding.plan import PlanEdit
from htam_agent.coding.prompting import PromptFile, Prompts
from htam_agent.coding.values import code_values, common_values, no_file_values, repair_values
from htam_agent.failures import Difference, FailureCause
from htam_agent.memory.model import Direction, ScoredStrategy, Strategy
from htam_agent.operator import Node, NodeReference, OperatorProfile, TensorInfo
from htam_agent.verdict import Ceilings, DeviceFacts, Failure, Interval, ProfileResult, Times
from htam_agent.words import Backend

TASK = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0


def get_inputs():
    return [torch.rand(1024, 1024)]
"""


def example_request(backend: Backend, *, first: bool = True) -> CodeRequest:
    """A small request with every field filled; `first` leaves out the best kernel and the history."""
    tensor = TensorInfo(name="x", shape=(1024, 1024), dtype="float32", stride=(1024, 1))
    node = Node(
        name="relu", kind="call", target="aten.relu.default", arguments=[NodeReference(node="x")], outputs=[tensor]
    )
    operator = OperatorProfile(
        name="Model",
        operator_class="pointwise",
        operators=["aten.relu", "aten.mul"],
        inputs=[tensor],
        parameters=[TensorInfo(name="weight", shape=(1024,), dtype="float32", stride=(1,))],
        outputs=[tensor.model_copy(update={"name": "output"})],
        unavoidable_bytes=8 << 20,
        operations=2 << 20,
        nodes=[node],
    )
    gpu = backend == "cuda"
    device = DeviceFacts(
        backend=backend,
        name="NVIDIA H200" if gpu else "a processor",
        architecture="sm_90" if gpu else "x86_64",
        compiler="NVRTC 13.0" if gpu else "g++ 12.2.0",
        torch="2.13.0",
        threads=132 if gpu else 2,
        memory_bytes=8 << 30,
    )
    strategy = Strategy(
        id="wide-loads",
        direction="memory-access",
        backend=backend,
        title="Wide loads",
        how="Move 16 bytes with one access.",
        slot="walk",
        block="{{ plan.vector_width }} elements at once;",
        edit=PlanEdit(vector_width=4),
        pitfalls=["the tail needs care"],
    )
    best = BestSoFar(
        source="CPP_SRC = ''\n",
        plan=None,
        times_ms=Times(candidate=1.0, eager=2.0, best=2.0, floor=0.5),
        speedup=2.0,
        interval=Interval(low=1.9, high=2.1),
        profile=ProfileResult(
            bottleneck="memory", diagnosis="Bound by memory.", floor_ms=0.5, fraction_of_floor=0.5,
            registers=32, spill_bytes=0, occupancy=0.75, limited_by="registers",
        ),
    )  # fmt: skip
    return CodeRequest(
        task_source=TASK,
        operator=operator,
        backend=backend,
        device=device,
        ceilings=Ceilings(copy_bytes_per_second=1e10, fp32_operations_per_second=1e11, launch_seconds=1e-6),
        precision="tf32",
        policy="own-kernels-only",
        direction=Direction(
            id="memory-access", title="Memory access", intent="Move bytes in wide pieces.", when="always"
        ),
        direction_why="the kernel waits for memory",
        strategies=[ScoredStrategy(strategy=strategy, score=0.4, why="rows are long")],
        baselines=Times(eager=2.0, best=2.0, floor=0.5),
        best=None if first else best,
        history=[] if first else ["step 1: operator-fusion / none: correct, 1.2x"],
        step=1 if first else 2,
    )


DIRECT: dict[str, object] = {
    "operator": "pointwise (aten.relu, aten.mul)",
    "device": "NVIDIA H200",
    "best": "bound by memory, 1.20x over the best baseline, 50% of the floor",
    "history": ["step 1: operator-fusion / none: correct, 1.20x over best"],
    "step": 2,
    "steps_left": 2,
    "directions": [
        {"direction": "memory-access", "title": "Memory access: wide pieces", "score": 0.4, "why": "it waits"},
        {"direction": "data-reuse", "title": "Data reuse: read once", "score": 0.3, "why": "it reads twice"},
    ],
}
"""Values of the prompt `direct`."""


def example_failure(cause: FailureCause = "boundary") -> Failure:
    """A failed attempt of this cause."""
    difference = Difference(
        output="output", trial="x1 #1", wrong=3, total=1024, pattern="boundary",
        region="in the last dimension only 1021 to 1023, the last 3 of 1024", magnitude="all of them are NaN",
    )  # fmt: skip
    return Failure(
        kind="wrong", stage="verify", reason="x1 #1: outputs differ", evidence="at [0, 3]: 1 instead of 2",
        cause=cause, difference=difference,
    )  # fmt: skip


def render_examples(prompts: Prompts) -> dict[str, str]:
    """Every prompt with example values, by a name that tells them apart.

    Raises SettingsError for a prompt that fails.
    """
    return {name: text for file in prompts.files.values() for name, text in examples_of(prompts, file)}


def examples_of(prompts: Prompts, file: PromptFile) -> Iterator[tuple[str, str]]:
    """(name, rendered text) of the examples of one prompt. Raises SettingsError when it fails."""
    backends: tuple[Backend, ...] = ("cpp", "cuda")
    if file.prompt == "direct":
        yield "direct", prompts.render("direct", DIRECT)
        yield "direct-first", prompts.render("direct", {**DIRECT, "best": "", "history": [], "steps_left": 1})
        return
    for backend in backends:
        if file.backend in ("", backend):
            for name, values in _examples(file.prompt, backend):
                yield name, prompts.render(file.prompt, values)


def _examples(prompt: str, backend: Backend) -> Iterator[tuple[str, dict[str, object]]]:
    first, later = example_request(backend), example_request(backend, first=False)
    if prompt == "system":
        yield f"system-{backend}", common_values(first)
    elif prompt == "code":
        yield f"code-first-{backend}", code_values(first)
        yield f"code-later-{backend}", code_values(later)
        yield f"code-free-{backend}", code_values(later.model_copy(update={"direction": None, "strategies": []}))
    else:
        for cause in get_args(FailureCause):
            failure = example_failure(cause)
            repair = RepairRequest(
                request=later, source="x = 1\n", plan=None, failure=failure, tried=["wide-loads"], attempt=2
            )
            yield f"repair-{cause}-{backend}", repair_values(repair)
        yield f"repair-answer-{backend}", no_file_values(first, "The answer was empty.", 1)
        yield f"repair-go-on-{backend}", no_file_values(first, "The answer was cut off.", 1, ending="        y[i] =")
