"""What is seen of a call: operators in custom operators, threads and scripts, generated code, computing packages."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from htam_agent.evaluation.policy import forbidden_recorded
from htam_agent.evaluation.watching import namespaces, observed


@torch.library.custom_op("htam_test_watching::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("htam_test_watching::copied", mutates_args=())
def copied(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y.copy_(x)
    return y


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.exp()


def in_a_thread(x: torch.Tensor) -> None:
    thread = threading.Thread(target=lambda: torch.sigmoid(x))
    thread.start()
    thread.join()


CHEATS: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "in a custom operator": (twice, "aten.mul"),
    "in an autograd function": (Exponential.apply, "aten.exp"),
    "in another thread": (in_a_thread, "aten.sigmoid"),
    "under vmap": (torch.func.vmap(torch.cos), "aten.cos"),
    "by name": (torch.ops.aten.erf, "aten.erf"),
    "a method": (lambda x: x.tanh(), "aten.tanh"),
    "made of others": (lambda x: torch.softmax(x, -1), "aten._softmax"),
    "in place": (lambda x: x.clone().relu_(), "aten.relu_"),
    "numpy": (lambda x: getattr(x, "num" + "py")(), "numpy.numpy"),
}

HONEST: dict[str, Callable[[torch.Tensor], object]] = {
    "allocation": lambda x: (torch.empty_like(x), torch.zeros(3), torch.full((3,), 1.0), x.new_empty(4)),
    "views": lambda x: (x.t().contiguous(), x.mT, x[0, 1], x[:, None].reshape(-1), x.expand(2, 8, 8).flatten()),
    "copies": lambda x: (x.to(torch.float64), x.half(), x.clone(), torch.cat([x, x]), torch.hstack([x, x])),
    "numbers": lambda x: (x.sum, x.shape, x[0, 0].item(), x.stride(), x.is_contiguous()),
    "own operator": copied,
}


@pytest.mark.parametrize("name", CHEATS)
def test_operators_of_torch_are_seen_wherever_they_run(name: str) -> None:
    function, operator = CHEATS[name]
    x = torch.randn(8, 8)
    with torch.no_grad(), observed(watch=False, record=True) as ran:
        function(x)
    assert forbidden_recorded(ran.recorded, "own-kernels-only", ["htam_test_watching"]) == [operator]
    assert ran.operators == []


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("watch", [True, False])
def test_allocation_views_and_copies_are_no_computing(name: str, watch: bool) -> None:
    x = torch.randn(8, 8)
    with torch.no_grad(), observed(watch=watch, record=True) as ran:
        HONEST[name](x)
    assert forbidden_recorded(ran.recorded, "own-kernels-only", ["htam_test_watching"]) == []
    assert ran.recorded or name == "numbers"


def test_what_a_library_call_does_inside_is_its_own() -> None:
    x = torch.randn(2, 8, 8)
    with torch.no_grad(), observed(watch=False, record=True) as ran:
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
        torch.nn.functional.linear(x, x[0])
        torch.nn.functional.conv1d(x, x)
    assert forbidden_recorded(ran.recorded, "library-allowed", []) == []
    assert "aten.linear" in forbidden_recorded(ran.recorded, "own-kernels-only", [])


def test_generated_code_is_nobodys_own() -> None:
    recorded = ["torch.compile", "torch.jit"]
    for policy in ("own-kernels-only", "library-allowed"):
        assert forbidden_recorded(recorded, policy, ["torch"]) == recorded


def test_a_package_is_seen_and_left_alone_where_libraries_are_allowed() -> None:
    assert forbidden_recorded(["numpy.dot"], "library-allowed", []) == []
    assert forbidden_recorded(["numpy.dot"], "own-kernels-only", ["numpy"]) == ["numpy.dot"]


def test_an_own_operator_hides_nothing() -> None:
    paths = ["mine.op", "mine.op > aten.empty > aten.mul", "mine.op > other.op > aten.mul"]
    assert forbidden_recorded(paths, "own-kernels-only", ["mine"]) == ["other.op"]
    assert forbidden_recorded(paths, "own-kernels-only", ["mine", "other"]) == ["aten.mul"]


def test_namespaces_are_those_of_registered_operators() -> None:
    assert {"aten", "htam_test_watching"} <= namespaces()
