"""Null kernels: tasks that prove little are named, with what would pass for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.evaluation.nulls import passing_nulls
from htam_agent.task import Task
from htam_agent.words import Protocol

GIVEN = torch.rand(8, 8)
ROWS = torch.rand(8, 1).expand(8, 8).contiguous()


@pytest.mark.parametrize(
    ("output", "protocol", "nulls"),
    [
        (torch.zeros(8, 8), "strict", ["zeros", "the mean", "the mean of each row"]),
        (torch.ones(8, 8), "strict", ["ones", "the mean", "the mean of each row"]),
        (GIVEN.clone(), "strict", ["a copy of input 1"]),
        (torch.full((4,), 0.5), "strict", ["the mean"]),
        (ROWS, "strict", ["the mean of each row"]),
        (torch.rand(8, 8), "strict", []),
        (torch.tensor(3.0), "strict", []),
        (torch.arange(3), "strict", []),
        (torch.softmax(0.1 * torch.randn(4, 400000), -1), "kernelbench", ["zeros", "the mean", "the mean of each row"]),
        (torch.softmax(0.1 * torch.randn(4, 400000), -1), "strict", []),
        (1e-6 * torch.rand(300, 1000), "verified", ["zeros", "the mean", "the mean of each row"]),
    ],
)
def test_nulls_of_one_output(output: torch.Tensor, protocol: Protocol, nulls: list[str]) -> None:
    inputs = [torch.rand(3), GIVEN]
    assert passing_nulls([(inputs, [output])], protocol) == nulls


def test_a_null_must_pass_every_case_and_every_output() -> None:
    first, second = torch.rand(4, 4), torch.rand(4, 4)
    assert passing_nulls([([first], [first.relu()])], "strict") == ["a copy of input 0"]
    assert passing_nulls([([first], [first.relu()]), ([-second], [(-second).relu()])], "strict") == []
    assert passing_nulls([([first], [first.relu(), first + 1])], "strict") == []


TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return {body}

def get_inputs():
    return [torch.rand({shape})]
"""


def weak_check(folder: Path, body: str, shape: str = "16, 32") -> tuple[bool, str]:
    (folder / "task.py").write_text(TASK.format(body=body, shape=shape))
    with Bench(
        Task.parse(str(folder / "task.py")), backend="cpp", folder=folder / "run", limits=Limits(run_seconds=20)
    ) as bench:
        check = next(check for check in bench.notes if check.name == "task-not-weak")
    return check.passed, check.detail


def test_a_relu_of_positive_inputs_is_weak_for_kernelbench_and_not_for_strict(tmp_path: Path) -> None:
    passed, detail = weak_check(tmp_path, "torch.relu(x)")
    assert passed
    assert "a copy of input 0 under kernelbench" in detail
    assert "strict" not in detail
    assert "verified" not in detail, "times -1 shows it"


def test_tiny_outputs_are_weak_for_absolute_tolerances(tmp_path: Path) -> None:
    passed, detail = weak_check(tmp_path, "torch.softmax(x, 1)", "2, 60000")
    assert passed
    assert "zeros" in detail
    assert "strict" not in detail


def test_outputs_that_do_not_depend_on_the_input_are_weak_for_all(tmp_path: Path) -> None:
    passed, detail = weak_check(tmp_path, "torch.relu(-x.abs())")
    assert not passed
    assert "zeros" in detail
    assert "under strict" in detail
