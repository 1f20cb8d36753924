"""Other shapes on the reference's side: real models, no processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from htam_agent.evaluation.deep.exchange import BadFile, read_tensors, write_tensors
from htam_agent.evaluation.deep.other_shapes import OtherShapes
from htam_agent.evaluation.deep.records import DeepJudge, DeepPrepare, DeepPrepared
from htam_agent.evaluation.float64 import Float64Model
from htam_agent.evaluation.loading import Inputs, LoadedTask
from htam_agent.evaluation.reference_model import ReferenceModel
from htam_agent.evaluation.strictness import StrictJudge
from htam_agent.evaluation.trees import Tree
from htam_agent.task import Task


class Product(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y


class Add(Product):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Fussy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] % 2:
            raise ValueError("even only")
        return x.log() if x.shape[0] < 8 else x


def prepared(model: nn.Module, folder: Path, count: int = 2) -> tuple[OtherShapes, DeepPrepared]:
    task = Task.from_module(model, [torch.randn(8, 8)] * count)

    def draw(seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(8, 8, generator=generator) for _ in range(count)]

    reference = ReferenceModel(task, model, draw(0))
    strict = StrictJudge(Float64Model(reference, draw(0), "cpu"), 0.0)
    shapes = OtherShapes(reference, LoadedTask(model, draw, []), "cpu", "tf32", strict)
    order = DeepPrepare(folder=str(folder), seed=3, largest_bytes=1 << 20, small_elements=1 << 10)
    return shapes, shapes.prepare(order)


def test_inputs_that_share_an_extent_change_together(tmp_path: Path) -> None:
    _, found = prepared(Add(), tmp_path)
    assert {tuple(case.tensors[0].shape) for case in found.cases} == {(8, 8), (9, 8), (7, 8), (5, 8), (1, 8), (8, 7)}
    assert all(case.tensors[0].shape == case.tensors[1].shape for case in found.cases)


def test_the_factors_of_a_square_product_do_not(tmp_path: Path) -> None:
    _, found = prepared(Product(), tmp_path)
    changed = [case for case in found.cases if not case.given]
    assert {tuple(case.tensors[0].shape) for case in changed} == {(9, 8), (7, 8), (5, 8), (1, 8)}
    assert all(case.tensors[1].shape == [8, 8] for case in changed)


def test_a_form_that_the_reference_does_not_take_is_named(tmp_path: Path) -> None:
    _, found = prepared(Fussy(), tmp_path, 1)
    assert any("even only" in reason for reason in found.dropped)
    assert all(case.tensors[0].shape[0] % 2 == 0 for case in found.cases)


@pytest.mark.parametrize("kind", ["right", "wrong", "short"])
def test_right_outputs_pass_and_others_do_not(tmp_path: Path, kind: str) -> None:
    shapes, found = prepared(Add(), tmp_path)
    case = next(case for case in found.cases if case.tensors[0].shape == [9, 8])
    x, y = read_tensors(tmp_path / case.file, case.tensors, "cpu", 1 << 20)
    right = x + y
    wrong = right.clone()
    wrong[8, 7] += 0.1
    tensor, words = {"right": (right, ""), "wrong": (wrong, "[8, 7]"), "short": (right[:8], "is expected")}[kind]
    specs = write_tensors(tmp_path / "out.bin", [tensor])
    tree = Tree(kind="tensor", index=0)
    order = DeepJudge(label=case.label, file=str(tmp_path / "out.bin"), outputs=tree, tensors=specs)
    judged = shapes.judge(order)
    assert judged.passed == (kind == "right")
    assert words in judged.detail
    assert not shapes.judge(order).passed, "each case is judged once"


def test_a_file_that_is_not_what_it_is_said_to_be_is_refused(tmp_path: Path) -> None:
    shapes, found = prepared(Add(), tmp_path)
    case = next(case for case in found.cases if case.tensors[0].shape == [9, 8])
    specs = write_tensors(tmp_path / "out.bin", [torch.zeros(9, 8)])
    (tmp_path / "out.bin").write_bytes(b"short")
    order = DeepJudge(
        label=case.label, file=str(tmp_path / "out.bin"), outputs=Tree(kind="tensor", index=0), tensors=specs
    )
    assert "cannot be read" in shapes.judge(order).detail
    other = next(item for item in found.cases if item.label != case.label)
    (tmp_path / "link").symlink_to(tmp_path / other.file)
    specs = [other.tensors[0]]
    followed = DeepJudge(label=other.label, file=str(tmp_path / "link"), outputs=order.outputs, tensors=specs)
    assert "cannot be read" in shapes.judge(followed).detail
    assert "no case" in shapes.judge(order.model_copy(update={"label": "another"})).detail


def test_tensors_come_back_as_they_went(tmp_path: Path) -> None:
    given = [torch.randn(3, 5).T, torch.tensor(4), torch.zeros(0, 7), torch.tensor([True, False]), torch.ones(2).half()]
    specs = write_tensors(tmp_path / "t", given)
    back = read_tensors(tmp_path / "t", specs, "cpu", 1 << 20)
    for ours, theirs in zip(back, given, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    with pytest.raises(BadFile, match="bytes where"):
        read_tensors(tmp_path / "t", specs, "cpu", 8)
    with pytest.raises(BadFile, match="cannot be"):
        read_tensors(tmp_path / "t", [specs[0].model_copy(update={"dtype": "os"})], "cpu", 1 << 20)
