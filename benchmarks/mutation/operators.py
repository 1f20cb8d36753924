"""All operators of the mutation benchmark by name."""

from __future__ import annotations

from benchmarks.mutation.layouts import LAYOUTS
from benchmarks.mutation.pointwise import POINTWISE
from benchmarks.mutation.rows import ROWS
from benchmarks.mutation.small_operator import Operator

OPERATORS: dict[str, Operator] = {item.name: item for item in (*POINTWISE, *ROWS, *LAYOUTS)}
