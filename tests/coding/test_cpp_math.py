"""The polynomial functions and conversions of the C++ strategies, on dense grids and every 16-bit pattern."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.backends.flags import CPP_FLAGS
from htam_agent.memory.seedfiles import SEED, load_strategies

BLOCKS = {item.slot: item.block for item in load_strategies(SEED / "strategies" / "cpp" / "math.yaml").values()}
FUNCTIONS = ("exp", "expm1", "log", "log1p", "tanh", "erf")
EXACT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp, "expm1": torch.expm1, "log": torch.log, "log1p": torch.log1p, "tanh": torch.tanh,
    "erf": torch.erf,
}  # fmt: skip
UNITS = {"exp": 2.0, "expm1": 3.0, "log": 2.0, "log1p": 3.0, "tanh": 3.0, "erf": 3.0}
"""Largest error in units in the last place that the blocks promise."""
RANGES = {
    "exp": (-104.0, 89.0), "expm1": (-30.0, 89.0), "log": (1e-38, 1e4), "log1p": (-0.5, 1e4), "tanh": (-12.0, 12.0),
    "erf": (-5.0, 5.0),
}  # fmt: skip

HEAD = """
#include <cmath>
#include <cstdint>
#include <cstring>
static inline uint32_t bits_of(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); return bits; }
static inline float float_of(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }
"""
LOOP = """
extern "C" void map_{name}(const {of}* x, {to}* y, int64_t count) {{
    for (int64_t i = 0; i < count; ++i) y[i] = {call}(x[i]);
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("math")
    text = HEAD + "\n".join(BLOCKS[f"math_{name}"] for name in FUNCTIONS) + BLOCKS["math_convert"]
    text += "".join(LOOP.format(name=name, of="float", to="float", call=f"op_{name}") for name in FUNCTIONS)
    for name in ("float_of_half", "float_of_bfloat"):
        text += LOOP.format(name=name, of="uint16_t", to="float", call=name)
    for name in ("half_of_float", "bfloat_of_float"):
        text += LOOP.format(name=name, of="float", to="uint16_t", call=name)
    (folder / "math.cpp").write_text(text, encoding="utf-8")
    binary = Path(folder / "math.so")
    subprocess.run(["g++", *CPP_FLAGS, str(folder / "math.cpp"), "-o", str(binary)], check=True)
    return ctypes.CDLL(str(binary))


def call(library: ctypes.CDLL, name: str, values: torch.Tensor, out: torch.dtype = torch.float32) -> torch.Tensor:
    values = values.contiguous()
    answer = torch.empty(values.shape, dtype=out)
    getattr(library, f"map_{name}")(
        ctypes.c_void_p(values.data_ptr()), ctypes.c_void_p(answer.data_ptr()), ctypes.c_int64(values.numel())
    )
    return answer


def units(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest error in units in the last place of the exact float64 value (subnormals: of the smallest number)."""
    ok = exact.abs() < 3.4e38
    found, exact = found[ok].double(), exact[ok]
    spacing = torch.from_numpy(np.spacing(np.abs(exact.numpy()).astype(np.float32))).double()
    return float(((found - exact).abs() / spacing).max())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_on_a_dense_grid(library: ctypes.CDLL, name: str) -> None:
    low, high = RANGES[name]
    grid = torch.cat([torch.linspace(low, high, 400_001), torch.logspace(-30, 1, 100_001)])
    if low < 0:
        grid = torch.cat([grid, -torch.logspace(-30, -0.31, 100_001)])
    grid = grid[(grid >= low) & (grid <= high)]
    assert units(call(library, name, grid), EXACT[name](grid.double())) <= UNITS[name]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(library: ctypes.CDLL, name: str) -> None:
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, 1e30, -1e30, 200.0, -200.0, 1e-45])
    found, expected = call(library, name, special), EXACT[name](special.double()).float()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=2e-45, equal_nan=True)


@given(values=st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_any_number(library: ctypes.CDLL, values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    for name in FUNCTIONS:
        ok = x > -0.5 if name == "log1p" else torch.ones_like(x, dtype=torch.bool)
        found, exact = call(library, name, x)[ok], EXACT[name](x.double()).float()[ok]
        torch.testing.assert_close(found, exact, rtol=4e-7, atol=2e-45, equal_nan=True)


@pytest.mark.parametrize(("name", "dtype"), [("half", torch.float16), ("bfloat", torch.bfloat16)])
def test_conversions_are_those_of_torch(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    numbers = patterns.view(dtype).float()
    found = call(library, f"float_of_{name}", patterns)
    assert torch.equal(found.nan_to_num(12345.0), numbers.nan_to_num(12345.0))
    assert torch.equal(found.isnan(), numbers.isnan())
    finite = numbers[numbers.isfinite()]
    between = torch.cat([finite, (finite[1:] + finite[:-1]) / 2, finite * 1.0001, torch.randn(100_000) * 1e-6])
    between = torch.cat([between, torch.tensor([65519.0, 65520.0, 1e38, float("inf"), float("-inf"), 1e-45, -0.0])])
    stored = call(library, f"{name}_of_float", between, torch.uint16)
    assert torch.equal(stored.view(dtype), between.to(dtype))
    assert call(library, f"{name}_of_float", torch.tensor([float("nan")]), torch.uint16).view(dtype).isnan().all()
