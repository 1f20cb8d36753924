"""The template coder as a Coder: first candidates, repairs, refusals, and strategies that are data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from htam_agent.coding.base import BestSoFar, Code, Coder, CodeRequest, RepairRequest
from htam_agent.coding.cpp import SLOTS as CPP_SLOTS
from htam_agent.coding.cuda import SLOTS as CUDA_SLOTS
from htam_agent.coding.template import TemplateCoder
from htam_agent.memory.model import Direction, ScoredStrategy, Strategy
from htam_agent.memory.seedfiles import load_strategies, seed_strategies
from htam_agent.tracing import trace_model
from htam_agent.verdict import DeviceFacts, Failure, Times
from tests.coding.kernels import TOLERANCE, error, loaded
from tests.coding.operators import Case, Function, cases

SEED = {key: item for key, item in seed_strategies().items() if item.backend == "cpp"}
DEVICE = DeviceFacts(backend="cpp", name="test", architecture="x86_64")


def request(case: Case, strategies: list[Strategy], best: Code | None = None, index: int = 0) -> CodeRequest:
    module, inputs = case
    return CodeRequest(
        task_source="",
        operator=trace_model(module, list(inputs), "case"),
        backend="cpp",
        device=DEVICE,
        precision="ieee",
        policy="own-kernels-only",
        direction=Direction(id="data-reuse", title="", intent="", when=""),
        strategies=[ScoredStrategy(strategy=item, score=1.0, why="") for item in strategies],
        best=None if best is None else BestSoFar(source=best.source, plan=best.plan, times_ms=Times()),
        index=index,
    )


def test_it_is_a_coder() -> None:
    assert isinstance(TemplateCoder(SEED), Coder)


def test_a_step_edits_the_best_plan() -> None:
    coder, case = TemplateCoder(SEED), cases(4, 100)["softmax"]
    first = coder.generate(request(case, [SEED["cpp-threads-over-rows"]]))
    second = coder.generate(request(case, [SEED["cpp-online-softmax"]], best=first))
    assert second.plan is not None
    assert second.plan.strategies == ("cpp-threads-over-rows", "cpp-online-softmax")
    assert "#pragma omp parallel for" in second.source
    assert "top_" in second.source
    assert error(loaded(second.source, case[0]), *case) <= TOLERANCE[torch.float32]


def test_strategies_that_enter_the_memory_later_are_known_on_the_best_plans_path() -> None:
    """A refresh puts another mapping in the place of the one that was there when the coder was made."""
    late, case = "cpp-threads-over-rows", cases(4, 100)["softmax"]
    held = {name: one for name, one in SEED.items() if name != late}
    coder = TemplateCoder(lambda: held)
    held = SEED
    first = coder.generate(request(case, [SEED[late]]))
    second = coder.generate(request(case, [SEED["cpp-online-softmax"]], best=first))
    assert second.plan is not None, second.refusal
    assert second.plan.strategies == (late, "cpp-online-softmax")


def test_index_picks_among_the_applicable() -> None:
    coder, case = TemplateCoder(SEED), cases(4, 100)["softmax"]
    names = ["cpp-polynomial-erf", "cpp-row-buffer", "cpp-one-pass-moments", "cpp-online-softmax"]
    offered = [SEED[name] for name in names]
    assert coder.generate(request(case, offered)).strategy == "cpp-row-buffer"
    assert coder.generate(request(case, offered, index=1)).strategy == "cpp-online-softmax"
    assert "no strategy" in coder.generate(request(case, offered, index=2)).refusal


def test_repair_takes_the_edit_back_and_tries_the_next() -> None:
    coder, case = TemplateCoder(SEED), cases(4, 100)["softmax"]
    asked = request(case, [SEED["cpp-row-buffer"], SEED["cpp-polynomial-exp"]])
    first = coder.generate(asked)
    failure = Failure(kind="wrong", stage="verify", reason="test")
    tried = ["cpp-row-buffer"]
    second = coder.repair(
        RepairRequest(request=asked, source=first.source, plan=first.plan, failure=failure, tried=tried, attempt=1)
    )
    assert second.plan is not None
    assert second.plan.strategies == ("cpp-polynomial-exp",)
    assert "stage_" not in second.source
    third = coder.repair(
        RepairRequest(
            request=asked,
            source=second.source,
            plan=second.plan,
            failure=failure,
            tried=[*tried, "cpp-polynomial-exp"],
            attempt=2,
        )
    )
    assert third.source == ""
    assert "no strategy is left" in third.refusal


def test_an_operator_that_cannot_be_rendered_is_named() -> None:
    answer = TemplateCoder(SEED).generate(
        request((torch.nn.Linear(4, 4), [torch.randn(2, 4)]), [SEED["cpp-threads-over-rows"]])
    )
    assert answer.source == ""
    assert "aten." in answer.refusal


def test_a_strategy_that_changes_nothing_is_passed_over() -> None:
    coder, case = TemplateCoder(SEED), cases(4, 100)["softmax"]
    first = coder.generate(request(case, [SEED["cpp-threads-over-rows"]]))
    again = coder.generate(request(case, [SEED["cpp-threads-over-rows"]], best=first))
    assert "on the plan's path already" in again.refusal
    empty = Strategy(id="nothing", direction="data-reuse", backend="cpp", title="", how="")
    assert "it changes nothing in this kernel" in coder.generate(request(case, [empty], best=first)).refusal


USER = """
- id: my-reciprocal-sigmoid
  direction: instruction-throughput
  backend: cpp
  title: My own sigmoid
  how: One division instead of an exponential of a negative number.
  slot: math_sigmoid
  block: |
    // made for {{ program.columns }} elements
    static inline real op_sigmoid(real x) {
        const real e = op_exp(x < 0 ? x : -x);
        return (x < 0 ? e : real(1)) / (real(1) + e);
    }
"""


def test_a_users_strategy_needs_no_python(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(USER, encoding="utf-8")
    strategies = {**SEED, **load_strategies(tmp_path, "user")}
    case = cases(4, 100)["swish-scaled"]
    answer = TemplateCoder(strategies).generate(request(case, [strategies["my-reciprocal-sigmoid"]]))
    assert answer.strategy == "my-reciprocal-sigmoid"
    assert "// made for 400 elements" in answer.source
    assert "    const real e = op_exp(x < 0 ? x : -x);\n" in answer.source
    assert error(loaded(answer.source, case[0]), *case) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    ("strategy", "case", "trace"),
    [
        ("cpp-row-buffer", "softmax", "stage_storage"),
        ("cpp-online-softmax", "softmax", "top_"),
        ("cpp-split-row", "softmax", "const int64_t parts"),
        ("cpp-polynomial-erf", "residual-norm-gelu", "exp_for_erf"),
        ("cpp-streaming-stores", "softmax", "_mm_stream"),
        ("cpp-dynamic-chunks", "softmax", "schedule(dynamic"),
    ],
)
def test_what_only_one_strategy_brings_is_gone_without_it(strategy: str, case: str, trace: str) -> None:
    operator = cases(4, 40000)[case]
    full = TemplateCoder(SEED).generate(request(operator, [SEED[strategy]]))
    assert trace in full.source
    edit_alone = SEED[strategy].model_copy(update={"id": "edit-alone", "slot": None, "block": ""})
    rest = {key: item for key, item in SEED.items() if key != strategy}
    coder = TemplateCoder({**rest, "edit-alone": edit_alone})
    offered = [edit_alone, *(item for item in rest.values() if item.slot != SEED[strategy].slot)]
    for index in range(len(offered)):
        assert trace not in coder.generate(request(operator, offered, index=index)).source
    assert full.plan is not None
    assert "not in the memory" in coder.generate(request(operator, offered, best=full)).refusal


def test_a_block_that_fails_is_refused_with_its_name() -> None:
    case = (Function(torch.relu), [torch.randn(3, 4)])
    for block in ("{{ nothing_of_this_name }}", "{% if %}", "{{ ''.__class__.__mro__ }}", "{{ 1 // 0 }}"):
        bad = Strategy(id="bad", direction="data-reuse", backend="cpp", title="", how="", slot="row_begin", block=block)
        answer = TemplateCoder({**SEED, "bad": bad}).generate(request(case, [bad]))
        assert answer.source == ""
        assert "block of strategy bad" in answer.refusal


def test_a_slot_that_no_skeleton_has_is_refused() -> None:
    case = (Function(torch.relu), [torch.randn(3, 4)])
    lost = Strategy(id="lost", direction="data-reuse", backend="cpp", title="", how="", slot="nowhere", block="// x")
    assert "no place for its slot 'nowhere'" in TemplateCoder({"lost": lost}).generate(request(case, [lost])).refusal


def test_every_seed_strategy_fills_slots_that_its_kernels_have() -> None:
    known = {"cpp": set(CPP_SLOTS), "cuda": set(CUDA_SLOTS)}
    for strategy in seed_strategies().values():
        slots = {*strategy.more_blocks, *([strategy.slot] if strategy.slot else [])}
        assert slots <= known[strategy.backend], strategy.id
