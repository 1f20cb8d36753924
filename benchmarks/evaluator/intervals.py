"""Intervals of a share."""

from __future__ import annotations

import math

Z95 = 1.959963984540054
"""Two-sided 95 % of the normal distribution."""


def wilson(hits: int, total: int) -> tuple[float, float] | None:
    """The 95 % score interval of a share (E. B. Wilson, JASA 22, 1927, p. 209); null for no trials."""
    if not 0 <= hits <= total:
        raise ValueError(f"{hits} of {total} is no share")
    if total == 0:
        return None
    share, weight = hits / total, Z95 * Z95 / total
    middle = (share + weight / 2.0) / (1.0 + weight)
    reach = Z95 / (1.0 + weight) * math.sqrt(share * (1.0 - share) / total + weight / (4.0 * total))
    return (0.0 if hits == 0 else max(0.0, middle - reach), 1.0 if hits == total else min(1.0, middle + reach))
