"""Which other shapes are tried."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from htam_agent.evaluation.deep.extents import Extents

shapes = st.lists(st.lists(st.integers(1, 40), max_size=4), min_size=1, max_size=4)


@given(shapes, st.integers(0, 1 << 16), st.booleans())
def test_every_form_differs_from_the_task_s_own_fits_and_is_tried_once(
    given_shapes: list[list[int]], limit: int, last: bool
) -> None:
    extents = Extents(given_shapes, [4] * len(given_shapes))
    forms = extents.others(limit, last=last)
    assert len({(form.leading, form.last) for form in forms}) == len(forms)
    assert len({form.label for form in forms}) == len(forms)
    for form in forms:
        assert form.leading >= 1
        assert form.leading != extents.leading or form.last is not None
        assert form.leading <= extents.largest(limit) + 1
        assert extents.bytes_at(form.leading - 1) <= limit
        assert all(given_shapes[index][0] == extents.leading for index in form.members)
        if form.last is not None:
            assert last
            assert all(given_shapes[index][-1] == form.last + 1 for index in form.last_members)


def test_a_task_that_fits_is_tried_around_its_own_extent() -> None:
    forms = Extents([[32, 100], [32, 100], [100]], [4, 4, 4]).others(1 << 20, last=True)
    assert [(form.leading, form.last) for form in forms] == [(33, None), (31, None), (17, None), (1, None), (32, 99)]
    assert forms[0].members == (0, 1)


def test_a_task_that_is_too_large_is_tried_at_the_largest_extent_that_fits() -> None:
    extents = Extents([[4096, 1 << 20]], [4])
    assert [form.leading for form in extents.others(64 << 20, last=False)] == [17, 15, 9, 1]
    assert extents.small(1 << 16) == 1


def test_a_task_without_extents_has_no_other_shape() -> None:
    assert Extents([[]], [4]).others(1 << 20, last=True) == []
    assert Extents([], []).others(1 << 20, last=True) == []


def test_inputs_that_cannot_be_made_small_have_no_other_shape() -> None:
    assert Extents([[2, 1 << 20]], [4]).others(1 << 20, last=True) == []


def test_one_input_alone_changes_where_that_is_asked_for() -> None:
    extents = Extents([[8, 8], [8, 8]], [4, 4], alone=True)
    assert extents.shared
    forms = extents.others(1 << 20, last=False)
    assert [form.leading for form in forms] == [9, 7, 5, 1]
    assert all(form.members == (0,) for form in forms)
    assert extents.bytes_at(9) == 4 * (9 * 8 + 8 * 8)
