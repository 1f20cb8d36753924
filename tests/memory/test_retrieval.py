"""Local retrieval: hard filters first, then fit and measured record."""

from __future__ import annotations

import pytest

from htam_agent.memory.retrieval import applicable, retrieve_strategies
from tests.support.memory import DEVICE, experience, features, index, state, strategy

EIGHT_THREADS = DEVICE.model_copy(update={"threads": 8})


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ({"reductions_min": 3}, "the number of reductions is 2, at least 3 is needed"),
        ({"reductions_max": 1}, "the number of reductions is 2, at most 1 is allowed"),
        ({"rows_min": 5000}, "the number of rows is 4096, at least 5000 is needed"),
        ({"rows_max": 64}, "the number of rows is 4096, at most 64 is allowed"),
        ({"columns_min": 2048}, "the number of columns is 1024, at least 2048 is needed"),
        ({"columns_max": 1023}, "the number of columns is 1024, at most 1023 is allowed"),
        ({"columns_multiple_of": 7}, "1024 columns are no multiple of 7"),
        ({"row_bytes_min": 8192}, "a row's size in bytes is 4096, at least 8192 is needed"),
        ({"row_bytes_max": 2048}, "a row's size in bytes is 4096, at most 2048 is allowed"),
        ({"transcendentals_min": 2}, "the number of transcendentals is 1, at least 2 is needed"),
        ({"dtypes": ["float16", "bfloat16"]}, "the dtype is float32, needed is float16 or bfloat16"),
        ({"operator_classes": ["scan"]}, "the operator is a softmax, needed is scan"),
        ({"operators_any": ["aten.tanh", "aten.erf"]}, "no aten.tanh or aten.erf occurs"),
        ({"compute_capability_min": 90}, "the compute capability is 80, at least 90 is needed"),
        ({"compute_capability_max": 75}, "the compute capability is 80, at most 75 is allowed"),
        ({"architectures": ["sm_90", "sm_100"]}, "the architecture is x86_64, needed is sm_90 or sm_100"),
        ({"threads_min": 16}, "the device's number of threads is 8, at least 16 is needed"),
        ({"threads_max": 4}, "the device's number of threads is 8, at most 4 is allowed"),
        ({"plan_mapping": ["warp-row"]}, "the kernel's mapping is block-row, needed is warp-row"),
        ({"plan_staging": ["shared"]}, "the kernel's staging is none, needed is shared"),
    ],
)
def test_each_precondition_filters_and_says_so(needs: dict[str, object], reason: str) -> None:
    here = state(compute_capability=80, plan_mapping="block-row", plan_staging="none", device=EIGHT_THREADS)
    assert applicable(strategy("a", "wide", **needs), here) == reason
    assert applicable(strategy("a", "wide"), here) is None


@pytest.mark.parametrize(
    "needs",
    [
        {"reductions_min": 2, "reductions_max": 2, "rows_min": 4096, "rows_max": 4096},
        {"columns_min": 1024, "columns_max": 1024, "columns_multiple_of": 512},
        {"row_bytes_min": 4096, "row_bytes_max": 4096, "transcendentals_min": 1},
        {"dtypes": ["float32"], "operator_classes": ["softmax", "scan"], "operators_any": ["aten.tanh", "aten.exp"]},
        {"compute_capability_min": 90, "plan_mapping": ["block-row"], "plan_staging": ["none", "shared"]},
    ],
)
def test_bounds_are_inclusive(needs: dict[str, object]) -> None:
    here = state(compute_capability=90, plan_mapping="block-row", plan_staging="none")
    assert applicable(strategy("a", "wide", **needs), here) is None


def test_backend_history_and_unknown_hardware_filter() -> None:
    assert applicable(strategy("a", "wide", backend="cuda"), state()) == "it is for the backend cuda, not cpp"
    assert applicable(strategy("a", "wide"), state(tried=("a",))) == "it was tried on the best kernel so far"
    part = applicable(strategy("a", "wide"), state(plan_strategies=("a",)))
    assert part == "it is part of the best kernel already"
    assert applicable(strategy("a", "wide", threads_max=4), state()) == (
        "the device's number of threads is unknown, at most 4 is allowed"
    )
    assert applicable(strategy("a", "wide", architectures=["sm_90"]), state(device=None, compute_capability=90)) is None
    unknown = applicable(strategy("a", "wide", compute_capability_min=90), state())
    assert unknown == "the compute capability is unknown, at least 90 is needed"


def test_without_a_plan_the_coder_judges_what_is_said_about_plans() -> None:
    assert applicable(strategy("a", "wide", plan_mapping=["warp-row"], plan_staging=["shared"]), state()) is None


def test_only_this_directions_strategies_come_best_first_and_few() -> None:
    strategies = (*[strategy(f"s{i}", "wide") for i in range(9)], strategy("other", "reuse"))
    found = retrieve_strategies(state(), "wide", index(strategies=strategies), limit=4)
    assert len(found) == 4
    assert all(scored.strategy.direction == "wide" for scored in found)
    assert [scored.score for scored in found] == sorted((scored.score for scored in found), reverse=True)
    assert retrieve_strategies(state(), "unheard-of", index()) == []


def test_what_measured_well_moves_up_and_what_failed_moves_down() -> None:
    strategies = tuple(strategy(name, "wide") for name in ("a", "b", "c"))
    records = [experience("good", "wide", "c", 0.9), experience("bad", "wide", "a", None)]
    found = retrieve_strategies(state(), "wide", index(*records, strategies=strategies))
    assert [scored.strategy.id for scored in found] == ["c", "b", "a"]
    assert "measured +0.90 on average in 1 steps like this" in found[0].why
    assert "measured" not in found[1].why


def test_a_record_in_another_state_counts_less() -> None:
    def score(**changes: object) -> float:
        made = experience("a", "wide", "wide-loads", 1.0, **changes)
        return next(s.score for s in retrieve_strategies(state(), "wide", index(made)) if s.strategy.id == "wide-loads")

    assert score() > score(features=features(operator_class="pointwise")) > 0


def test_advice_that_fits_comes_first() -> None:
    specific = strategy("z-specific", "wide", operators_any=["aten.exp"], dtypes=["float32"])
    general = strategy("a-general", "wide")
    names = [s.strategy.id for s in retrieve_strategies(state(), "wide", index(strategies=(general, specific)))]
    assert names == ["z-specific", "a-general"]
    about_it = strategy("z-about", "wide", how="A softmax over memory: exp of float32.")
    other = strategy("a-about", "wide", how="Barriers, grids, and their shapes.")
    names = [s.strategy.id for s in retrieve_strategies(state(), "wide", index(strategies=(other, about_it)))]
    assert names == ["z-about", "a-about"]


def test_equals_go_by_id() -> None:
    twins = tuple(strategy(name, "wide", how="The same.").model_copy(update={"title": "t"}) for name in ("b", "a"))
    assert [s.strategy.id for s in retrieve_strategies(state(), "wide", index(strategies=twins))] == ["a", "b"]
