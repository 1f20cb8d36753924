"""Which trials run for which protocol, under which flags; tasks that a protocol leaves out."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.errors import TaskError
from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.evaluation.exclusions import FORWARDS, excluded_protocols, outline
from htam_agent.evaluation.families import FAMILIES
from htam_agent.evaluation.plans import CHANGED_WITH, PROTOCOLS, TrialPlan, in_place_of, plan_trials
from htam_agent.task import Task
from htam_agent.words import Protocol
from tests.evaluation.samples import TASK, candidate

asked = st.lists(st.sampled_from(PROTOCOLS), min_size=1, unique=True)


def of(plans: list[TrialPlan], protocol: Protocol) -> list[TrialPlan]:
    return [plan for plan in plans if protocol in plan.protocols]


@given(asked, st.booleans(), st.booleans())
def test_every_protocol_gets_its_own_trials_whatever_else_is_asked(
    protocols: list[Protocol], has_parameters: bool, flags_matter: bool
) -> None:
    plans = plan_trials(protocols, has_parameters, flags_matter=flags_matter)
    assert all(plan.protocols and set(plan.protocols) <= set(protocols) for plan in plans)
    assert len({plan.label for plan in plans}) == len(plans)
    for protocol in protocols:
        mine = of(plans, protocol)
        plain = [plan for plan in mine if plan.factor == 1 and not plan.family and not plan.changed_parameters]
        if protocol == "kernelbench":
            assert (len(mine), len(plain)) == (5, 5)
        elif protocol == "strict":
            assert len(plain) == 2
            assert {plan.family for plan in mine} == {"", *FAMILIES}
            changed = {plan.family for plan in mine if plan.changed_parameters}
            assert changed == (set(CHANGED_WITH) if has_parameters else set())
        else:
            shared = "kernelbench" in protocols and (protocol == "verified" or not flags_matter)
            assert len(plain) == (5 if shared else 1)
            assert sorted({plan.factor for plan in mine}) == [-1.0, 0.01, 1.0, 3.0]
            assert len(mine) == len(plain) + 3


@given(asked, st.booleans())
def test_where_flags_matter_no_trial_is_shared_between_flags(protocols: list[Protocol], has_parameters: bool) -> None:
    for plan in plan_trials(protocols, has_parameters, flags_matter=True):
        literal = {"kernelbench", "verified"}
        assert (plan.regime == "defaults") == (set(plan.protocols) <= literal)
        assert set(plan.protocols) <= literal or not set(plan.protocols) & literal
    plans = plan_trials(protocols, has_parameters)
    assert all(plan.regime == "declared" for plan in plans)


def test_other_parameters_are_seen_where_no_family_can_be() -> None:
    """An embedding's inputs are integers: no family changes them, but its table does."""
    assert in_place_of([]) == []
    some = in_place_of([f"{CHANGED_WITH[0]}, parameters changed: it is not finite"])
    assert [plan.label for plan in some] == ["blend"]
    every = in_place_of([f"{family}, parameters changed: no input" for family in CHANGED_WITH])
    assert [plan.changed_parameters for plan in every] == [True, False]
    assert all(plan.family == "" and plan.protocols == ("strict",) for plan in every)


EMBEDDING = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))

    def forward(self, x, y):
        return self.weight[x]

def get_inputs():
    return [torch.randint(0, 100, (32, 100)), torch.randint(0, 9, (2,))]

def get_init_inputs():
    return [100]
"""
LOOK_UP = """
extern "C" void kernel(const long* x, const long* y, const float* w, float* z, long rows, long columns) {
  for (long item = 0; item < rows * columns; ++item) z[item] = VALUE;
}
"""


@pytest.mark.parametrize(("value", "verdict"), [("w[x[item]]", "correct"), ("1.0f", "wrong")])
def test_a_table_of_ones_is_changed_under_integer_inputs(tmp_path: Path, value: str, verdict: str) -> None:
    task = write(tmp_path, EMBEDDING)
    kernel = tmp_path / "kernel.py"
    forward = "return launch(x, y, self.weight, torch.empty(x.shape))"
    kernel.write_text(candidate(forward, kernel=LOOK_UP.replace("VALUE", value)))
    limits = Limits(run_seconds=20)
    with Bench(task, backend="cpp", folder=tmp_path / "run", limits=limits, policy="own-kernels-only") as bench:
        result = bench.run(bench.compile(kernel), timing=False)
    assert result.protocols["strict"] == verdict, result.reason
    assert result.protocols["verified"] == "correct"


MEAN = '''
import torch
import torch.nn as nn

class Model(nn.Module):
    """
    Any words.
    """
    def __init__(self, in_channels, out_channels, kernel_size, num_groups):
        super(Model, self).__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size)
        self.group_norm = nn.GroupNorm(num_groups, out_channels)

    def forward(self, x):
        x = self.conv(x)
        x = self.group_norm(x)   # another comment
        x = x.mean(dim=[1, 2, 3, 4])
        return x

def get_inputs():
    return [torch.rand(2, 3, 4, 6, 6)]

def get_init_inputs():
    return [3, 8, 3, 4]
'''


def write(folder: Path, text: str, name: str = "task.py") -> Task:
    (folder / name).write_text(text)
    return Task.parse(str(folder / name))


def test_a_task_that_is_left_out_is_known_by_its_content_or_its_name(tmp_path: Path) -> None:
    assert outline(MEAN, "Model") in FORWARDS
    by_content = excluded_protocols(write(tmp_path, MEAN, "renamed.py"))
    assert set(by_content) == {"verified", "verified-fair"}
    assert "L2/23" in by_content["verified"]
    by_name = excluded_protocols(write(tmp_path, TASK, "83_Conv3d_GroupNorm_Min_Clamp_Dropout.py"))
    assert "L2/83" in by_name["verified"]
    assert excluded_protocols(write(tmp_path, TASK, "23_Softmax.py")) == {}
    assert excluded_protocols(write(tmp_path, MEAN.replace("mean(dim", "sum(dim"), "other.py")) == {}


def test_an_excluded_protocol_gives_no_verdict_and_says_why(tmp_path: Path) -> None:
    task = write(tmp_path, TASK, "80_Gemm_Max_Subtract_GELU.py")
    kernel = tmp_path / "kernel.py"
    kernel.write_text(candidate())
    with Bench(task, backend="cpp", protocols=PROTOCOLS, folder=tmp_path / "run", limits=Limits(run_seconds=20)) as b:
        result = b.run(b.compile(kernel), timing=False)
    assert result.protocols == {"strict": "correct", "kernelbench": "correct"}
    assert any(check.name == "protocol verified" and "excluded" in check.detail for check in result.checks)


def test_a_protocol_that_leaves_the_task_out_cannot_decide(tmp_path: Path) -> None:
    bench = Bench(write(tmp_path, MEAN), backend="cpp", protocol="verified", folder=tmp_path / "run")
    with pytest.raises(TaskError, match="gives no verdict"):
        bench.open()


PARAMETER_ADDRESS = candidate(
    """
    z = torch.empty_like(x)
    LIBRARY.kernel(pointer(x), pointer(y), ctypes.c_void_p(self.address), pointer(z), ctypes.c_long(32),
                   ctypes.c_long(100))
    LAUNCHES[:] = [("kernel", (1, 1, 1), (1, 1, 1), 0)]
    return z
    """,
    init="self.address = self.weight.data_ptr()\nself.kept = self.weight.detach()",
)
"""As a graph that is replayed knows its parameters: by address, which changes in place do not move."""
PARAMETER_COPY = PARAMETER_ADDRESS.replace("self.weight.data_ptr()", "self.packed.data_ptr()").replace(
    "self.address =", "self.packed = self.weight.detach().clone(); self.address ="
)
INPUT_WRITER = candidate("z = launch(x, y, self.weight, torch.empty_like(x))\nx.zero_()\nreturn z")


@pytest.mark.parametrize(
    ("text", "strict", "kernelbench", "word"),
    [
        (candidate(), "correct", "correct", ""),
        (PARAMETER_ADDRESS, "correct", "correct", ""),
        (PARAMETER_COPY, "wrong", "correct", "parameters changed"),
        (INPUT_WRITER, "wrong", "correct", "input 0 afterwards"),
    ],
)
def test_what_strict_finds_and_a_literal_protocol_does_not(
    tmp_path: Path, text: str, strict: str, kernelbench: str, word: str
) -> None:
    task = write(tmp_path, TASK)
    kernel = tmp_path / "kernel.py"
    kernel.write_text(textwrap.dedent(text))
    limits = Limits(run_seconds=20)
    with Bench(task, backend="cpp", protocols=PROTOCOLS, folder=tmp_path / "run", limits=limits) as bench:
        result = bench.run(bench.compile(kernel), timing=False)
    assert (result.protocols["strict"], result.protocols["kernelbench"]) == (strict, kernelbench), result.reason
    assert word in result.reason
    if strict == "correct":
        check = next(check for check in result.checks if check.name == "float64")
        assert check.passed
        assert "errors measured in 11 of 12 trials" in check.detail
