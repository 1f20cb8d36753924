"""Every C++ seed strategy renders, builds with g++ and computes what PyTorch computes, where it applies.

A kernel's source does not depend on the number of rows, and only where a mean is taken on that of columns, so one build
serves many shapes.
"""

from __future__ import annotations

import pytest
import torch

from htam_agent.coding.render import RenderError
from htam_agent.memory.seedfiles import SEED, load_strategies
from tests.coding.kernels import ENGINE, RENDERER, TOLERANCE, error, loaded, planned, rendered, traced
from tests.coding.operators import cases

STRATEGIES = load_strategies(SEED / "strategies" / "cpp", "seed")
SHAPES = [(3, 1), (2, 7), (5, 33), (3, 1000), (2, 4097)]
DIRECTIONS = {
    "memory-access", "data-reuse", "parallel-mapping", "boundary-handling", "instruction-throughput", "operator-fusion",
    "numerical-formulation", "latency-hiding", "synchronization", "work-scheduling", "cache-policy", "occupancy",
}  # fmt: skip
REPRESENTATIVE: dict[str, tuple[str, ...]] = {
    "cpp-threads-over-rows": ("softmax", "row-statistics"),
    "cpp-threads-over-tiles": ("relu", "channel-affine"),
    "cpp-split-row": ("softmax", "rms-norm"),
    "cpp-polynomial-exp": ("log-softmax", "swish-scaled"),
    "cpp-polynomial-expm1": ("selu",),
    "cpp-polynomial-log": ("log-abs",),
    "cpp-polynomial-log1p": ("mish",),
    "cpp-polynomial-tanh": ("gelu-tanh",),
    "cpp-polynomial-erf": ("residual-norm-gelu",),
    "cpp-vector-accumulators": ("row-max", "row-statistics"),
    "cpp-row-buffer": ("softmax", "residual-norm-gelu"),
    "cpp-online-softmax": ("softmax",),
    "cpp-one-pass-moments": ("row-statistics",),
    "cpp-streaming-stores": ("softmax", "channel-affine"),
    "cpp-convert-16": ("softmax",),
}
"""Operators on which a strategy is tried in every run; the slow test tries all."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Kernels of this module are built once, outside the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("kernels")))
        yield


def check(path: list[str], case: str, dtype: torch.dtype, shapes: list[tuple[int, int]]) -> int:
    """Renders and verifies one path on one operator; returns how many shapes it applied to."""
    applied = 0
    for rows, columns in shapes:
        module, inputs = cases(rows, columns, dtype)[case]
        profile, program = traced(module, inputs)
        try:
            result = rendered(profile, program, STRATEGIES, path)
        except RenderError:
            continue
        if path and STRATEGIES[path[-1]].slot not in result.slots:
            continue
        found = error(loaded(result.source, module), module, inputs)
        assert found <= TOLERANCE[dtype], f"{case} {rows} x {columns}: {found}"
        applied += 1
    return applied


def test_the_seed_covers_every_direction_but_fusion() -> None:
    assert len(STRATEGIES) >= 14
    # Rendering fuses the whole operator from the first step on, so that there is nothing left for operator-fusion.
    assert {strategy.direction for strategy in STRATEGIES.values()} == DIRECTIONS - {"operator-fusion"}
    for strategy in STRATEGIES.values():
        assert strategy.backend == "cpp"
        assert strategy.how
        assert strategy.pitfalls
        assert strategy.source


IN_TURN = [(strategy, list(TOLERANCE)[number % len(TOLERANCE)]) for number, strategy in enumerate(STRATEGIES)]
"""Each strategy with all operators in one of the types, in turn."""


@pytest.mark.parametrize("case", list(cases(2, 4)))
def test_plain_kernels_are_right(case: str) -> None:
    assert check([], case, torch.float32, SHAPES[1:4:2]) == 2


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "cpp-convert-16"])
def test_strategy_is_right_in_float32(strategy: str) -> None:
    for case in REPRESENTATIVE.get(strategy, ("softmax",)):
        assert check([strategy], case, torch.float32, SHAPES) > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategy_is_right_in_16_bits(strategy: str, dtype: torch.dtype) -> None:
    assert check([strategy], REPRESENTATIVE.get(strategy, ("softmax",))[0], dtype, [(3, 33)]) > 0


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("case", "path"),
    [
        ("residual-norm-gelu", ["cpp-threads-over-rows", "cpp-vector-accumulators", "cpp-polynomial-erf",
                                "cpp-simd-loops", "cpp-row-buffer", "cpp-one-pass-moments", "cpp-streaming-stores"]),
        ("softmax", ["cpp-restrict-outputs", "cpp-guided-schedule", "cpp-online-softmax", "cpp-polynomial-exp",
                     "cpp-unrolled-loops", "cpp-overlapping-tail", "cpp-prefetch-next-row"]),
        ("mish", ["cpp-threads-over-tiles", "cpp-polynomial-exp", "cpp-polynomial-tanh", "cpp-polynomial-log1p",
                  "cpp-simd-loops", "cpp-peeled-tail"]),
    ],
)  # fmt: skip
def test_paths_of_several_strategies(case: str, path: list[str], dtype: torch.dtype) -> None:
    assert check(path, case, dtype, [(2, 4097)]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "dtype"), IN_TURN)
def test_strategy_is_right_wherever_it_applies(strategy: str, dtype: torch.dtype) -> None:
    applied = sum(check([strategy], case, dtype, SHAPES) for case in cases(2, 4))
    dtypes = STRATEGIES[strategy].preconditions.dtypes
    assert (applied > 0) == (dtypes is None or str(dtype).removeprefix("torch.") in dtypes)


@pytest.mark.parametrize("strategy", ["cpp-threads-over-rows", "cpp-online-softmax", "cpp-vector-accumulators"])
@pytest.mark.parametrize("case", ["softmax", "log-softmax", "row-max"])
def test_infinities_and_nan_come_out_as_in_torch(case: str, strategy: str) -> None:
    module, _ = cases(5, 1000)[case]
    x = torch.randn(5, 1000, generator=torch.Generator().manual_seed(1))
    x[0, 7] = float("nan")
    x[1, :] = float("-inf")
    x[2, :600] = float("-inf")
    x[3, 5] = float("inf")
    profile, program = traced(module, [x])
    try:
        result = rendered(profile, program, STRATEGIES, [strategy])
    except RenderError:
        assert (case, strategy) == ("row-max", "cpp-online-softmax")
        return
    assert error(loaded(result.source, module), module, [x]) <= TOLERANCE[torch.float32]


def test_long_rows_keep_their_accuracy() -> None:
    """Two million elements with a mean far from zero: a single float accumulator would lose four digits."""
    module, _ = cases(1, 4)["row-statistics"]
    x = torch.randn(2, 1 << 21, generator=torch.Generator().manual_seed(2)) + 30.0
    profile, program = traced(module, [x])
    lanes = ["cpp-vector-accumulators"]
    for path in ([], lanes, ["cpp-one-pass-moments"], ["cpp-split-row", *lanes]):
        kernel = loaded(rendered(profile, program, STRATEGIES, path).source, module)
        with torch.no_grad():
            mean, variance, _ = kernel(x)
        assert torch.allclose(mean.double(), x.double().mean(1), rtol=3e-7, atol=0)
        assert torch.allclose(variance.double(), x.double().var(1, correction=0), rtol=2e-6, atol=0)


def test_a_plan_without_its_strategy_cannot_be_rendered() -> None:
    module, inputs = cases(3, 1000)["softmax"]
    profile, program = traced(module, inputs)
    plan = planned(program, STRATEGIES, ["cpp-row-buffer"])
    assert "stage_storage" in ENGINE.render(RENDERER, profile, program, plan, STRATEGIES).source
    with pytest.raises(RenderError, match="not in the memory"):
        ENGINE.render(RENDERER, profile, program, plan, {})
    for field, value in (("staging", "shared"), ("passes", "online"), ("mapping", "split-row")):
        bare = RENDERER.default_plan(program).model_copy(update={field: value})
        assert "no strategy on the path fills the slot" in RENDERER.refusal(program, bare)
