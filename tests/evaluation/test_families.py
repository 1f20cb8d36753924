"""Drawn families of inputs: what they change, what they leave alone, and that a seed decides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.evaluation import families
from htam_agent.evaluation.families import FAMILIES, Nature, applies, member, nature_of
from htam_agent.evaluation.messages import Family

Tensor = torch.Tensor
seeds = st.integers(0, 2**62)
any_family = st.sampled_from(FAMILIES)
FREE = Nature(free=True)


def twice(make: str) -> tuple[Tensor, Tensor]:
    """Two draws of an input of a kind."""
    torch.manual_seed(3)
    first, second = torch.randn(12, 12), torch.randn(12, 12)
    made = {
        "normal": lambda x: x,
        "half": lambda x: x.half(),
        "transposed": lambda x: x[:5].t(),
        "triangle": lambda x: x.tril(),
        "symmetric": lambda x: x + x.t(),
        "rows that sum to one": lambda x: torch.softmax(x, -1),
        "mask as numbers": lambda x: (x > 0).float(),
        "signs": lambda x: x.sign(),
        "constant": lambda x: torch.ones(12, 12).tril(),
        "integers": lambda x: (x * 9).long(),
        "booleans": lambda x: x > 0,
        "expanded": lambda x: x[:, :1].expand(12, 12),
        "empty": lambda x: x[:0],
        "vector": lambda x: x.flatten(),
    }[make]
    return made(first), made(second)


@pytest.mark.parametrize(
    "kind",
    ["rows that sum to one", "mask as numbers", "signs", "constant", "integers", "booleans", "expanded", "empty"],
)
def test_what_has_a_meaning_of_its_own_is_left_alone(kind: str) -> None:
    nature = nature_of(*twice(kind))
    assert not any(applies(family, nature) for family in FAMILIES)


@pytest.mark.parametrize("kind", ["normal", "half", "transposed", "triangle", "vector"])
@given(family=any_family, seed=seeds, attempt=st.integers(0, 2))
def test_a_member_has_the_form_of_its_tensor_and_follows_the_seed(
    kind: str, family: Family, seed: int, attempt: int
) -> None:
    first, second = twice(kind)
    before = first.clone()
    nature = nature_of(first, second)
    assert applies(family, nature)
    made = member(family, first, nature, seed, attempt)
    assert (made.shape, made.stride(), made.dtype) == (first.shape, first.stride(), first.dtype)
    assert bool(made.isfinite().all())
    assert torch.equal(first, before)
    assert torch.equal(made, member(family, first, nature, seed, attempt))


@given(family=any_family, seed=seeds)
def test_triangles_stay_triangles(family: Family, seed: int) -> None:
    first, second = twice("triangle")
    made = member(family, first, nature_of(first, second), seed, 0)
    assert torch.equal(made, made.tril())


@given(family=any_family, seed=seeds)
def test_symmetric_matrices_stay_symmetric(family: Family, seed: int) -> None:
    first, second = twice("symmetric")
    nature = nature_of(first, second)
    if applies(family, nature):
        made = member(family, first, nature, seed, 0)
        assert torch.equal(made, made.t())


def drawn(family: Family, seed: int, attempt: int = 0) -> tuple[Tensor, Tensor]:
    tensor = torch.rand(200, 50, generator=torch.Generator().manual_seed(seed)) + 0.01
    return tensor, member(family, tensor, FREE, seed, attempt)


@given(seeds)
def test_each_family_does_what_its_name_says(seed: int) -> None:
    tensor, scaled = drawn("scale", seed)
    ratio = scaled / tensor
    assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-5)
    assert 0.009 < float(ratio[0, 0]) < 101
    tensor, shifted = drawn("shift", seed)
    step = shifted - tensor
    assert float(step.std()) < 1e-5
    assert 0.9 * float(tensor.std(correction=0)) < abs(float(step.mean())) < 4.1 * float(tensor.std(correction=0))
    tensor, signed = drawn("sign", seed)
    assert torch.equal(signed.abs(), tensor)
    assert 0.4 < float((signed < 0).float().mean()) < 0.6
    tensor, sparse = drawn("sparse", seed)
    assert 0.005 < float((sparse != 0).float().mean()) < 0.25
    assert torch.equal(sparse[sparse != 0], tensor[sparse != 0])
    tensor, extreme = drawn("extreme-rows", seed)
    inner = extreme[:, 1:-1] / tensor[:, 1:-1]
    factors = inner.median(dim=1).values
    assert int((factors == 0).sum()) == 1
    assert 1 <= int((factors > 5).sum()) <= 3
    assert int((factors == families.TINY).sum()) == 1
    negative = extreme.amax(dim=1) < 0
    assert int(negative.sum()) == 2
    assert float(extreme[negative].amin(dim=1).max()) < -1.0 * float(tensor.std())
    ends = (extreme[:, [0, -1]] != tensor[:, [0, -1]]).sum(dim=1) == 1
    assert int((ends & (factors == 1)).sum()) == 2 * len(families.ENDS)
    assert int((factors == 1).sum()) >= 200 - 7


@given(seeds)
def test_whole_planes_are_negative_and_tiny_where_windows_span_rows(seed: int) -> None:
    tensor = torch.randn(3, 4, 26, 38, generator=torch.Generator().manual_seed(seed))
    made = member("extreme-rows", tensor, FREE, seed, 0)
    planes, given_planes = made.flatten(0, 1), tensor.flatten(0, 1)
    windows = torch.nn.functional.max_pool2d(made, 2).flatten(0, 1).flatten(1)
    assert int((windows.amax(dim=1) < -3.0).sum()) == 1
    assert (
        sum(torch.equal(ours, theirs * families.TINY) for ours, theirs in zip(planes, given_planes, strict=True)) == 1
    )
    milder = member("extreme-rows", tensor, FREE, seed, 1)
    assert bool(torch.equal(milder.sign(), tensor.sign()))


@pytest.mark.parametrize("family", FAMILIES)
@given(seed=seeds)
def test_no_two_elements_become_equal_where_places_are_asked_for(family: Family, seed: int) -> None:
    tensor = torch.randn(40, 25, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    made = member(family, tensor, FREE, seed, 0, distinct=True)
    assert len(made.unique()) == made.numel()
    if family in ("sparse", "extreme-rows"):
        assert len(member(family, tensor, FREE, seed, 0).unique()) < made.numel()


@given(seeds)
def test_later_attempts_are_milder(seed: int) -> None:
    tensor, third = drawn("extreme-rows", seed, 2)
    assert bool((third != 0).all()), "no zero row"
    assert float((third / tensor).max()) < 4
    tensor, third = drawn("shift", seed, 2)
    assert bool((third > 0).all()), "a positive domain is kept"


def test_two_seeds_give_two_members() -> None:
    for family in FAMILIES:
        assert not torch.equal(drawn(family, 1)[1], member(family, drawn(family, 1)[0], FREE, 2, 0))


def test_half_types_stay_in_their_range() -> None:
    tensor = torch.full((40, 40), 60.0, dtype=torch.float16) * torch.rand(40, 40).half()
    for family in FAMILIES:
        for seed in range(20):
            assert bool(member(family, tensor, FREE, seed, 0).isfinite().all())


def test_few_values_are_told_from_few_elements() -> None:
    assert nature_of(torch.tensor([0.3, 0.5]), torch.tensor([0.1, 0.7])).free, "two numbers are no mask"
    assert families.FEW_VALUES < 10
