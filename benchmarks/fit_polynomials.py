"""Fits the polynomials of the strategies in memory/seed/strategies/cpp/math.yaml and prints them with their errors.

Each is a weighted least-squares fit at Chebyshev nodes, refined by reweighting towards equal ripples (Lawson's method),
in float64; coefficients are then rounded to float32. Run: python benchmarks/fit_polynomials.py
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
NODES = 2000
ROUNDS = 60


def fit(
    target: Callable[[float], float], weight: Callable[[float], float], low: float, high: float, degree: int
) -> Floats:
    """Coefficients c of sum(c[k] x^k), near the smallest maximum of |weight * (target - polynomial)| on [low, high]."""
    angles = (np.arange(NODES) + 0.5) * math.pi / NODES
    nodes = (low + high) / 2 + (high - low) / 2 * np.cos(angles)
    values = np.array([target(float(x)) for x in nodes])
    weights = np.array([weight(float(x)) for x in nodes])
    powers = np.vander(nodes, degree + 1, increasing=True)
    importance = np.ones(NODES)
    for _ in range(ROUNDS):
        scale = weights * np.sqrt(importance)
        solution = np.linalg.lstsq(powers * scale[:, None], values * scale, rcond=None)[0]
        ripple = np.abs(weights * (powers @ solution - values))
        importance *= ripple / ripple.max() + 1e-12
        importance /= importance.max()
    return np.asarray(solution, dtype=np.float64)


def largest_error(
    coefficients: Floats, target: Callable[[float], float], weight: Callable[[float], float], low: float, high: float
) -> float:
    """Largest weighted error of the float32 coefficients, evaluated in float64."""
    rounded = coefficients.astype(np.float32).astype(np.float64)
    points = np.linspace(low, high, 20001)
    found = np.polyval(rounded[::-1], points)
    return max(abs(weight(float(x)) * (target(float(x)) - float(y))) for x, y in zip(points, found, strict=True))


def series(function: Callable[[float], float], leading: Callable[[float], float]) -> Callable[[float], float]:
    """function(x), or its expansion leading(x) where cancellation spoils the former."""
    return lambda x: function(x) if abs(x) > 1e-2 else leading(x)


EXP = series(lambda r: (math.expm1(r) - r) / (r * r), lambda r: 0.5 + r / 6 + r * r / 24 + r**3 / 120 + r**4 / 720)
LOG = series(
    lambda f: (math.log1p(f) - f + f * f / 2) / f**3,
    lambda f: 1 / 3 - f / 4 + f * f / 5 - f**3 / 6 + f**4 / 7 - f**5 / 8 + f**6 / 9,
)
TANH = series(
    lambda s: (math.tanh(math.sqrt(s)) / math.sqrt(s) - 1) / s,
    lambda s: -1 / 3 + 2 * s / 15 - 17 * s * s / 315 + 62 * s**3 / 2835,
)
ERF = series(
    lambda s: math.erf(math.sqrt(s)) / math.sqrt(s),
    lambda s: 2 / math.sqrt(math.pi) * (1 - s / 3 + s * s / 10 - s**3 / 42 + s**4 / 216),
)

POLYNOMIALS: dict[str, tuple[Callable[[float], float], Callable[[float], float], float, float, int]] = {
    # exp(r) = 1 + r + r^2 q(r) for |r| <= ln(2) / 2
    "exp": (EXP, lambda r: r * r, -0.3470, 0.3470, 4),
    # log(1 + f) = f - f^2 / 2 + f^3 q(f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1
    "log": (LOG, lambda f: f * f, -0.2930, 0.4143, 8),
    # tanh(x) = x + x^3 q(x^2) for |x| <= 0.625
    "tanh": (TANH, lambda s: s, 0.0, 0.3907, 4),
    # erf(x) = x q(x^2) for |x| <= 1
    "erf_small": (ERF, lambda s: 1.0, 0.0, 1.0, 6),
    # erf(x) = 1 - exp(-q(x)) for 1 <= x <= 4
    "erf_large": (lambda x: -math.log(math.erfc(x)), lambda x: math.erfc(x) / math.erf(x), 1.0, 4.0, 6),
}


def main() -> None:
    for name, (target, weight, low, high, degree) in POLYNOMIALS.items():
        coefficients = fit(target, weight, low, high, degree)
        error = largest_error(coefficients, target, weight, low, high)
        print(f"{name}: error {error:.2e} of the result (half a unit in the last place is 6.0e-08)")
        print("    " + ", ".join(f"{float(np.float32(value))!r}f" for value in coefficients))


if __name__ == "__main__":
    main()
