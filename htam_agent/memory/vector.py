"""The numeric vector of a state: what makes two optimisation states alike."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.model import Experience, SelectionState
from htam_agent.memory.share import CLOSED_NOTHING
from htam_agent.operator import OperatorClass, OperatorFeatures
from htam_agent.words import Bottleneck, DType

VECTOR_VERSION = "state-2"
"""Changes whenever a number of the vector changes its meaning, place or scale."""

_CLASSES: tuple[str, ...] = get_args(OperatorClass)
_DTYPES: tuple[str, ...] = get_args(DType)
_BOTTLENECKS: tuple[str, ...] = get_args(Bottleneck)

# Two states that differ in one of these alone have similarity exp(-2 * scale ** 2).
_CLASS_SCALE = 0.70  # 0.38: another class of operator has other loops
_DTYPE_SCALE = 0.35  # 0.78: another width shifts the balance a little
_BOTTLENECK_SCALE = 0.60  # 0.49: another bottleneck asks for another cure
# Sizes are compared as doublings, counts as they are: d apart gives exp(-(scale * d) ** 2).
_DOUBLING_SCALE = 0.10  # 0.37 at a factor of 1024
_COUNT_SCALE = 0.30  # 0.91 for one reduction more
_FRACTION_SCALE = 0.80  # 0.85 between 0.5 and 1.0 of the floor
# What was tried, and how it went. The directions themselves are compared by the path (index.py).
_TAKEN_SCALE = 0.10  # 0.91 for three steps more behind
_VAIN_SCALE = 0.40  # 0.85 where all was in vain instead of nothing
_LAST_SCALE = 0.25  # 0.94 after a step that closed all instead of nothing
_LEFT_SCALE = 0.10  # 0.96 with two steps left instead of seven: what is worth trying hardly depends on it

_UNKNOWN_FRACTION = 0.5
_UNKNOWN_LEFT = 3

VECTOR_SIZE = len(_CLASSES) + len(_DTYPES) + len(_BOTTLENECKS) + 13

COURSE = slice(VECTOR_SIZE - 4, VECTOR_SIZE - 1)
"""Places of what the vector holds of the path: steps taken, share of them in vain, last outcome. (The steps left
are the budget's.)"""


def state_vector(state: SelectionState | Experience) -> NDArray[np.float32]:
    """The vector [VECTOR_SIZE], float32, of a state or of the state that an experience was made in.

    Scaled so that the similarity of two states is exp(-|a - b| ** 2). In this order:

    - one-hot operator class, dtype and bottleneck;
    - the base-2 logarithms of 1 + rows, columns, row bytes, unavoidable bytes and arithmetic intensity;
    - the counts of reductions, full inputs and transcendentals, each at most 8;
    - the fraction of the floor that the best kernel reaches, 0 to 1.5 (0.5 when unknown);
    - steps taken, at most 8; the share of them that closed nothing; the last one's outcome; and the base-2 logarithm of
      1 + the steps left (3 left when unknown). Steps whose outcome was not recorded count as taken, and not as vain.
    """
    features = state.features
    known = state.fraction_of_floor if state.fraction_of_floor is not None else _UNKNOWN_FRACTION
    numbers = [
        *_one_hot(features.operator_class, _CLASSES, _CLASS_SCALE),
        *_one_hot(features.dtype, _DTYPES, _DTYPE_SCALE),
        *_one_hot(state.bottleneck, _BOTTLENECKS, _BOTTLENECK_SCALE),
        *_sizes(features),
        _COUNT_SCALE * min(features.reductions, 8),
        _COUNT_SCALE * min(features.full_inputs, 8),
        _COUNT_SCALE * min(features.transcendentals, 8),
        _FRACTION_SCALE * min(max(known, 0.0), 1.5),
        *_course(state),
    ]
    return np.array(numbers, dtype=np.float32)


def _one_hot(word: str, words: tuple[str, ...], scale: float) -> list[float]:
    return [scale if word == other else 0.0 for other in words]


def _sizes(features: OperatorFeatures) -> list[float]:
    sizes = (features.rows, features.columns, features.row_bytes, features.unavoidable_bytes)
    doublings = [math.log2(1 + max(size, 0)) for size in sizes]
    return [_DOUBLING_SCALE * value for value in (*doublings, math.log2(1 + max(features.arithmetic_intensity, 0.0)))]


def _course(state: SelectionState | Experience) -> list[float]:
    """How the run went so far, without the names of the directions that it took."""
    taken, outcomes = len(state.prefix), state.prefix_outcomes
    vain = sum(1 for share in outcomes if share <= CLOSED_NOTHING)
    last = min(max(outcomes[-1], -1.0), 1.0) if outcomes else 0.0
    left = state.steps_left if state.steps_left is not None else _UNKNOWN_LEFT
    return [
        _TAKEN_SCALE * min(taken, 8),
        _VAIN_SCALE * (vain / len(outcomes) if outcomes else 0.0),
        _LAST_SCALE * last,
        _LEFT_SCALE * math.log2(1 + max(left, 0)),
    ]
