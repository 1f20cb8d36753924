"""The numeric vector of a state: what makes two optimisation states alike."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from htam_agent.memory.model import Experience, SelectionState
from htam_agent.operator import OperatorClass, OperatorFeatures
from htam_agent.words import Bottleneck, DType

VECTOR_VERSION = "state-1"
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
_UNKNOWN_FRACTION = 0.5

VECTOR_SIZE = len(_CLASSES) + len(_DTYPES) + len(_BOTTLENECKS) + 9


def state_vector(state: SelectionState | Experience) -> NDArray[np.float32]:
    """The vector [VECTOR_SIZE], float32, of a state or of the state that an experience was made in.

    Scaled so that the similarity of two states is exp(-|a - b| ** 2): one-hot operator class, dtype and bottleneck,
    then the base-2 logarithms of rows, columns, row bytes, unavoidable bytes and arithmetic intensity, the counts of
    reductions, full inputs and transcendentals, and the fraction of the floor (0.5 when unknown).
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
    ]
    return np.array(numbers, dtype=np.float32)


def _one_hot(word: str, words: tuple[str, ...], scale: float) -> list[float]:
    return [scale if word == other else 0.0 for other in words]


def _sizes(features: OperatorFeatures) -> list[float]:
    sizes = (features.rows, features.columns, features.row_bytes, features.unavoidable_bytes)
    doublings = [math.log2(1 + max(size, 0)) for size in sizes]
    return [_DOUBLING_SCALE * value for value in (*doublings, math.log2(1 + max(features.arithmetic_intensity, 0.0)))]
