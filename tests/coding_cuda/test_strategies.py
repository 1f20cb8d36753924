"""Every CUDA strategy of the seed: rendered, run on the emulated device and compared with torch in float64."""

from __future__ import annotations

import pytest
import torch

from htam_agent.coding.render import RenderError
from tests.coding.kernels import TOLERANCE, error, traced
from tests.coding.operators import cases
from tests.coding_cuda.support import BEFORE, ENGINE, NAMES, RENDERER, STRATEGIES, Emulated, candidate, planned, trial

HALVES = (torch.float16, torch.bfloat16)
FAST_MATH_TOLERANCE = 3e-6
"""Of float32 where hardware intrinsics stand for accurate functions."""


def _fields(name: str) -> dict[str, object]:
    """Clusters of many blocks get blocks of one warp, so that the emulation stays quick."""
    edit = STRATEGIES[name].edit
    fields: dict[str, object] = {"threads": 32} if edit.cluster_size and edit.cluster_size > 4 else {}
    if edit.threads and edit.mapping is None and edit.staging is None:
        fields["threads"] = edit.threads
    return fields


def _dtype(index: int, name: str) -> torch.dtype:
    allowed = STRATEGIES[name].preconditions.dtypes or ["float32", "float16", "bfloat16"]
    names = [item for item in allowed if item in ("float32", "float16", "bfloat16")]
    chosen: torch.dtype = getattr(torch, names[index % len(names)])
    return chosen


def _check(name: str, dtype: torch.dtype, rows: int, columns: int, order: int) -> Emulated:
    before, operator = trial(name)
    module, inputs = cases(rows, columns, dtype)[operator]
    source = candidate(module, inputs, [*before, name], **_fields(name))
    kernel = Emulated(source, module, order, at_end=order != 1)
    bound = max(TOLERANCE[dtype], FAST_MATH_TOLERANCE if name in ("cuda-fast-intrinsics", "cuda-reciprocal") else 0.0)
    assert error(kernel, module, inputs) <= bound
    return kernel


def test_every_strategy_is_tried() -> None:
    assert set(BEFORE) <= set(STRATEGIES)
    assert len(STRATEGIES) >= 16
    assert len({item.direction for item in STRATEGIES.values()}) == 12


@pytest.mark.parametrize(("index", "name"), list(enumerate(NAMES)), ids=NAMES)
def test_strategy_is_right(index: int, name: str) -> None:
    columns = 29 if name == "cuda-thread-row" else 517
    kernel = _check(name, _dtype(index, name), rows=11, columns=columns, order=index % 3)
    assert kernel.kernels.launches


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_strategy_in_every_type_and_size(name: str) -> None:
    allowed = STRATEGIES[name].preconditions.dtypes or ["float32", "float16", "bfloat16"]
    for dtype in (item for item in allowed if item in ("float32", "float16", "bfloat16")):
        for place, columns in enumerate((2, 7, 33, 1000, 2049) if name != "cuda-thread-row" else (2, 7, 32)):
            _check(name, getattr(torch, dtype), rows=7, columns=columns, order=place % 3)


@pytest.mark.parametrize("name", [name for name, item in STRATEGIES.items() if item.block])
def test_block_stands_in_the_source(name: str) -> None:
    """The longest plain line of each block is in the kernel, and without the strategy the plan cannot be rendered."""
    before, operator = trial(name)
    profile, program = traced(*cases(4, 517, _dtype(0, name))[operator])
    plan = planned(program, [*before, name])
    source = ENGINE.render(RENDERER, profile, program, plan, STRATEGIES).source
    for block in [STRATEGIES[name].block, *STRATEGIES[name].more_blocks.values()]:
        plain = [line.strip() for line in block.splitlines() if "{" + "{" not in line and "{%" not in line]
        assert max(plain, key=len) in source
    others = {key: value for key, value in STRATEGIES.items() if key != name}
    with pytest.raises(RenderError, match=name):
        ENGINE.render(RENDERER, profile, program, plan, others)


def test_typed_fields_without_their_block_are_refused() -> None:
    """A plan that asks for a mapping, staging or running statistics, but holds no block for it, is not rendered."""
    _, program = traced(*cases(4, 517)["softmax"])
    for fields in (
        {"mapping": "cluster-row", "cluster_size": 2}, {"mapping": "warp-row"}, {"mapping": "split-row", "splits": 4},
        {"staging": "shared"}, {"passes": "online"},
    ):  # fmt: skip
        assert RENDERER.refusal(program, planned(program, [], **fields))


def test_user_strategy_with_a_block_of_its_own() -> None:
    """A new block in a slot shows in the source and in the result, with no change in Python."""
    from htam_agent.coding.plan import PlanEdit
    from htam_agent.memory.model import Strategy

    mine = Strategy(
        id="my-exp", direction="instruction-throughput", backend="cuda", title="exp by powers of two", how="exp2",
        slot="math",
        block="__device__ real op_exp(real a) { return exp2f(1.44269504f * a); }  // mine {{ plan.threads }}",
        edit=PlanEdit(fast_math=True),
    )  # fmt: skip
    module, inputs = cases(5, 200)["softmax"]
    profile, program = traced(module, inputs)
    plan = planned(program, []).apply(mine.id, mine.edit, mine.slot)
    source = ENGINE.render(RENDERER, profile, program, plan, {mine.id: mine}).source
    assert "// mine 256" in source
    assert "return expf(a)" not in source
    assert error(Emulated(source, module), module, inputs) < 3e-6


def test_unknown_slot_is_refused_by_name() -> None:
    _, program = traced(*cases(4, 64)["softmax"])
    plan = planned(program, []).model_copy(update={"blocks": {"warp_speed": "cuda-vector-4"}})
    assert "warp_speed" in RENDERER.refusal(program, plan)
