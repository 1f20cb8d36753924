"""Embedders: text to vectors. The default needs no network, no model and no other package than numpy."""

from __future__ import annotations

import re
import zlib
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

WORD_WEIGHT = 2.0
"""A whole word says more than one of the several n-grams that it is cut into."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors. `id` names the embedder and its version: vectors of two ids are never mixed."""

    @property
    def id(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Vectors [len(texts), dimension], float32, of unit length (zero for a text without letters or digits)."""
        ...


class HashingEmbedder:
    """Signed feature hashing of words and of character 3- to 5-grams within words.

    Each feature adds +1 or -1 to one of `dimension` buckets; bucket and sign come from its CRC-32, which is the same on
    every machine and Python version (unlike `hash`). Random signs make collisions cancel on average, so that the inner
    product of two vectors estimates the share of features in common (Weinberger et al., "Feature hashing for large
    scale multitask learning", 2009). It sees spelling, not meaning: enough to match operator and technique names.
    """

    def __init__(self, dimension: int = 256) -> None:
        """Raises ValueError unless `dimension` is a positive power of two (a power keeps the buckets even)."""
        if dimension < 1 or dimension & (dimension - 1):
            raise ValueError(f"The dimension is {dimension}; a power of two is needed.")
        self.dimension = dimension
        self.id = f"hashed-ngrams-1-{dimension}"

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """See Embedder.embed."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for word in re.findall(r"[a-z0-9]+", text.lower()):
                self._add(vector, word, WORD_WEIGHT)
                bounded = f"<{word}>"
                for length in (3, 4, 5):
                    for start in range(len(bounded) - length + 1):
                        self._add(vector, bounded[start : start + length], 1.0)
            norm = float(np.linalg.norm(vector))
            if norm > 0:
                vector /= norm
        return vectors

    def _add(self, vector: NDArray[np.float32], feature: str, weight: float) -> None:
        code = zlib.crc32(feature.encode())
        vector[(code >> 1) & (self.dimension - 1)] += weight if code & 1 else -weight
