"""What crosses between processes: messages, trees of tensors, shared memory."""

from __future__ import annotations

import math
import os
import socket
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.errors import WorkerError
from htam_agent.evaluation.buffers import HostBuffer, create_buffer, open_buffer
from htam_agent.evaluation.channel import HOSTILE_FRAME_LIMIT, Channel, Closed, Garbled, Silent
from htam_agent.evaluation.commands import Report
from htam_agent.evaluation.messages import Answer
from htam_agent.evaluation.trees import (
    UnsupportedValue,
    extent_of,
    flat_span,
    flatten,
    map_tensors,
    specs_of,
    unflatten,
    view,
)

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text(max_size=5),
    st.builds(lambda n: torch.arange(float(n)), st.integers(0, 4)), st.sampled_from([torch.float16, torch.int64]),
)  # fmt: skip
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)


def same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


@given(nested)
def test_a_tree_survives_json(value: object) -> None:
    tree, tensors = flatten(value)
    again = type(tree).model_validate_json(tree.model_dump_json())
    assert same(unflatten(again, tensors), value)


def test_infinities_and_nan_survive() -> None:
    tree, _ = flatten([math.inf, -math.inf, math.nan])
    values = unflatten(type(tree).model_validate_json(tree.model_dump_json()), [])
    assert isinstance(values, list)
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])


class Fake(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        (object(), False),
        ({1: 2}, False),
        ([torch.zeros(2).to_sparse()], False),
        (torch.zeros(2, device="meta"), False),
        (torch.zeros(2).as_subclass(Fake), True),
        (torch.nn.Parameter(torch.zeros(2)), True),
    ],
)
def test_what_cannot_cross_is_said(value: object, exact: bool) -> None:
    with pytest.raises(UnsupportedValue):
        flatten(value, exact=exact)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 5).t(),
        torch.randn(6, 7)[::2, 1:5],
        torch.randn(3, 1).expand(3, 4),
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.tensor([True, False]),
        torch.arange(6, dtype=torch.int16).view(2, 3),
        torch.randn(3, 4).to(torch.bfloat16).t(),
    ],
)
def test_layouts_survive_shared_memory(tensor: torch.Tensor) -> None:
    (spec,) = specs_of([tensor], 512)
    memory = torch.zeros(8192, dtype=torch.uint8)
    for shift in (0, 1024):
        target = view(memory, spec, shift)
        flat_span(target).copy_(flat_span(tensor))
        assert torch.equal(target, tensor)
        assert target.stride() == tensor.stride()


@given(st.lists(st.integers(0, 300), min_size=1, max_size=5))
def test_places_do_not_overlap(sizes: list[int]) -> None:
    tensors = [torch.zeros(size, dtype=torch.float16) for size in sizes]
    specs = specs_of(tensors)
    ends = [spec.offset + 2 * spec.span for spec in specs]
    assert all(spec.offset % 512 == 0 for spec in specs)
    assert all(end <= spec.offset for end, spec in zip(ends, specs[1:], strict=False))
    assert ends[-1] <= extent_of(tensors)


def test_map_tensors_keeps_the_rest() -> None:
    value = map_tensors({"a": [torch.ones(2), 3]}, lambda tensor: tensor * 2)
    assert same(value, {"a": [torch.full((2,), 2.0), 3]})


def test_a_buffer_is_the_same_memory_elsewhere_and_cannot_shrink() -> None:
    owner = create_buffer("cpu", 4096)
    other = open_buffer("cpu", os.dup(owner.descriptor), owner.size)
    owner.memory.fill_(7)
    assert int(other.memory.sum()) == 7 * 4096
    assert owner.memory.data_ptr() != other.memory.data_ptr()
    with pytest.raises(PermissionError):
        os.ftruncate(other.descriptor, 16)
    other.close()
    owner.close()
    owner.close()


def test_a_buffer_larger_than_the_machine_is_refused() -> None:
    with pytest.raises(WorkerError, match="GiB") as caught:
        HostBuffer.create(1 << 50)
    assert caught.value.code == "out-of-memory"


def raw(hostile: bool = False) -> tuple[Channel, socket.socket]:
    return Channel.pair(hostile=hostile)


def test_messages_and_descriptors_arrive() -> None:
    ours, theirs = raw()
    other = Channel(theirs)
    reading, writing = os.pipe()
    ours.send(Report(event="exit", pid=4), [writing])
    message, descriptors = other.receive_with_descriptors(Report, 1)
    assert message == Report(event="exit", pid=4)
    os.write(descriptors[0], b"x")
    assert os.read(reading, 1) == b"x"
    for descriptor in (reading, writing, *descriptors):
        os.close(descriptor)
    with pytest.raises(Silent):
        other.receive(Report, 0.05)
    ours.close()
    with pytest.raises(Closed):
        other.receive(Report, 1)
    with pytest.raises(Closed):
        other.send(Report(event="ready"))
    other.close()


@pytest.mark.parametrize(
    "payload",
    [b"", b"nonsense", b"{}", b'{"ok": "maybe"}', b'{"ok": true, "verdict": "correct"}', b"\xff\xfe", b"[" * 10000],
)
def test_nonsense_is_garbled(payload: bytes) -> None:
    ours, theirs = raw(hostile=True)
    theirs.sendall(struct.pack("<I", len(payload)) + payload)
    with pytest.raises(Garbled):
        ours.receive(Answer, 1)
    ours.close()
    theirs.close()


def test_a_hostile_side_can_neither_flood_nor_stall() -> None:
    ours, theirs = raw(hostile=True)
    theirs.sendall(struct.pack("<I", HOSTILE_FRAME_LIMIT + 1))
    with pytest.raises(Garbled, match="bytes"):
        ours.receive(Answer, 1)
    ours.close()
    theirs.close()
    ours, theirs = raw(hostile=True)
    theirs.sendall(struct.pack("<I", 100) + b"half")
    with pytest.raises(Silent):
        ours.receive(Answer, 0.1)
    ours.close()
    theirs.close()


def test_descriptors_of_a_hostile_side_are_not_taken() -> None:
    ours, theirs = raw(hostile=True)
    payload = Answer(ok=True).model_dump_json().encode()
    reading, writing = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(theirs, [struct.pack("<I", len(payload)) + payload], [writing])
    answer, descriptors = ours.receive_with_descriptors(Answer, 1)
    assert answer.ok
    assert descriptors == []
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(reading)
    os.close(writing)
    ours.close()
    theirs.close()
