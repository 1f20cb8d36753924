"""Strategies are tried before they enter: blocks rendered, built by g++ and NVRTC, verified by the evaluator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from htam_agent.errors import StoreError
from htam_agent.memory.model import Preconditions, Strategy
from htam_agent.memory.seeding import load_seed
from htam_agent.memory.store import MemoryStore
from htam_agent.memory.trial import Trial, add_tried
from htam_agent.memory.trial_operators import OPERATORS, Example, examples_for
from htam_agent.settings import Settings
from htam_agent.tracing import features_of, trace_model
from tests.support.memory import SEED, strategy

EXP = "static inline real op_exp(real a) { return std::exp(a); }"


def own(name: str, backend: str = "cpp", **changes: object) -> Strategy:
    """A user's strategy that fills the slot of the exponential."""
    slot = "math_exp" if backend == "cpp" else "math"
    base = strategy(name, "instruction-throughput", backend=backend, transcendentals_min=1)
    return base.model_copy(update={"slot": slot, "block": EXP, "provenance": "user", **changes})


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """One for all tests: the benches stay open."""
    seed = load_seed()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("trial"))
        settings = Settings.load({})
    known = {one.id: one for one in seed.strategies}
    with Trial(known, {one.id: one for one in seed.directions}, settings) as opened:
        yield opened


def test_a_good_strategy_passes(trial: Trial) -> None:
    assert trial.outcome(own("mine")) == ""


def test_a_cuda_strategy_is_built_and_without_a_gpu_not_run(trial: Trial) -> None:
    note = trial.outcome(own("mine", "cuda", block="__device__ real op_exp(real a) { return exp2f(1.44269504f * a); }"))
    assert note == "" or "rendered and built, not run" in note


def test_what_no_example_fits_is_said(trial: Trial) -> None:
    note = trial.outcome(own("far", preconditions=Preconditions(operators_any=["aten.convolution"])))
    assert note == "The strategy 'far' was not tried: no example operator fits its preconditions."


@pytest.mark.parametrize(
    ("block", "what"),
    [
        ("{{ nothing_of_that_name }}", "cannot be rendered"),
        ("{% if %}", "cannot be rendered"),
        ("static inline real op_exp(real a) { return a +; }", "does not build"),
        ("static inline real op_exp(real a) { return std::exp(a * real(1.01)); }", "no correct kernel"),
    ],
)
def test_a_wrong_block_is_refused_by_name(trial: Trial, block: str, what: str) -> None:
    with pytest.raises(StoreError, match=what) as caught:
        trial.outcome(own("mine", block=block))
    assert "'mine'" in caught.value.message
    assert caught.value.code == "memory-strategy"


def test_a_wrong_cuda_block_does_not_build_without_a_gpu(trial: Trial) -> None:
    with pytest.raises(StoreError, match="does not build"):
        trial.outcome(own("mine", "cuda", block="__device__ real op_exp(real a) { return a +; }"))


def test_a_strategy_that_needs_another_plan_is_tried_after_one_that_makes_it(trial: Trial) -> None:
    needs = Preconditions(plan_staging=["shared"], reductions_min=1)
    assert trial.outcome(own("mine", preconditions=needs)) == ""


def test_a_wrong_strategy_leaves_the_memory_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is built: an unknown slot, an unknown direction."""
    monkeypatch.chdir(tmp_path)
    with MemoryStore.open(tmp_path / "memory", seed=SEED) as store:
        before = store.fingerprint
        for bad in (strategy("bad", "wide").model_copy(update={"slot": "nowhere"}), strategy("bad", "nowhere")):
            with pytest.raises(StoreError, match="nowhere"):
                add_tried([strategy("good", "wide"), bad], store, Settings.load({}))
        assert store.fingerprint == before
        add_tried([strategy("words-only", "wide")], store, Settings.load({}))
        assert store.strategies["words-only"].provenance == "user"


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.expression)
def test_the_facts_of_an_example_are_those_of_its_trace(operator: object) -> None:
    example = Example(operator, 66, 1000, "float32")
    names: dict[str, object] = {}
    exec(example.source, names)
    model = names["Model"]()
    assert isinstance(model, nn.Module)
    profile = trace_model(model, [torch.randn(66, 1000)], "Model")
    state = example.state(strategy("any", "wide"))
    assert state.operators == profile.operators
    changes = {"arithmetic_intensity": 1.0, "unavoidable_bytes": state.features.unavoidable_bytes, "rows": 66}
    found = features_of(profile).model_copy(update=changes)
    assert found == state.features.model_copy(update={"rows": 66})


def test_every_seed_strategy_has_an_example() -> None:
    without = [one.id for one in load_seed().strategies if not examples_for(one)]
    assert without == []
