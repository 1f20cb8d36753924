"""The offline embedder and the state vector."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.memory.embed import Embedder, HashingEmbedder
from htam_agent.memory.vector import VECTOR_SIZE, state_vector
from tests.support.memory import experience, features, state


def test_the_default_keeps_the_seam() -> None:
    assert isinstance(HashingEmbedder(), Embedder)


@given(st.lists(st.text(), max_size=5))
def test_vectors_have_unit_length_or_are_zero(texts: list[str]) -> None:
    vectors = HashingEmbedder(64).embed(texts)
    assert vectors.shape == (len(texts), 64)
    assert vectors.dtype == np.float32
    for norm in np.linalg.norm(vectors, axis=1):
        assert norm == 0 or norm == pytest.approx(1, abs=1e-5)


def test_alike_texts_are_near() -> None:
    one, like, unlike = HashingEmbedder().embed(
        ["vectorised loads of aligned rows", "aligned vector loads for a row", "barrier removed by a warp shuffle"]
    )
    assert one @ like > 0.4 > one @ unlike


def test_vectors_are_the_same_in_another_process_and_as_they_were() -> None:
    """A change of these numbers needs another embedder id: stored vectors would no longer fit."""
    code = (
        "from htam_agent.memory.embed import HashingEmbedder\n"
        "print([round(float(x), 6) for x in HashingEmbedder(8).embed(['warp shuffle'])[0]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    )
    assert done.stdout.strip() == str([round(float(x), 6) for x in HashingEmbedder(8).embed(["warp shuffle"])[0]])
    assert done.stdout.strip() == "[0.458831, -0.458831, 0.0, -0.229416, 0.688247, 0.0, 0.229416, 0.0]"


@pytest.mark.parametrize("dimension", [0, -2, 3, 100])
def test_a_dimension_that_is_no_power_of_two_is_refused(dimension: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        HashingEmbedder(dimension)


def test_an_experience_has_the_vector_of_the_state_it_was_made_in() -> None:
    here = state(bottleneck="memory", fraction_of_floor=0.5)
    made = experience("a", "wide", "wide-loads", bottleneck="memory", fraction_of_floor=0.5)
    assert state_vector(here).shape == (VECTOR_SIZE,)
    assert np.array_equal(state_vector(here), state_vector(made))


def test_similarity_falls_with_what_differs() -> None:
    def similarity(**changes: object) -> float:
        return float(np.exp(-np.square(state_vector(state()) - state_vector(state(**changes))).sum()))

    assert similarity() == 1
    near, far = similarity(features=features(rows=8192)), similarity(features=features(rows=4096 * 4096))
    assert 0.9 < near < 1
    assert far < near
    assert similarity(features=features(operator_class="pointwise")) < 0.5
    assert similarity(bottleneck="compute") < 0.6
