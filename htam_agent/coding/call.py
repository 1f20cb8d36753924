"""One call of an ATen operator with its arguments resolved to symbolic tensors, and typed access to them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from typing_extensions import TypeAliasType

from htam_agent.coding.tensors import Tensor, Unsupported

Given = TypeAliasType("Given", "Tensor | bool | int | float | str | list[Given] | None")
"""An argument: a tensor or plain data."""


@dataclass(frozen=True)
class Call:
    """`operator` is the ATen name without its overload ("aten.add"), `shape` that of the first result."""

    operator: str
    arguments: list[Given]
    keywords: dict[str, Given] = field(default_factory=dict)
    shape: tuple[int, ...] = ()

    def given(self, place: int, name: str = "") -> Given:
        """The argument at `place`, else the keyword `name`, else None."""
        return self.arguments[place] if place < len(self.arguments) else self.keywords.get(name)

    def tensor(self, place: int) -> Tensor:
        """A tensor argument."""
        value = self.given(place)
        if not isinstance(value, Tensor):
            raise self.unsupported(f"argument {place} is {value!r}, not a tensor")
        return value

    def optional(self, place: int) -> Tensor | None:
        """A tensor argument that may be None."""
        return None if self.given(place) is None else self.tensor(place)

    def operand(self, place: int) -> Tensor | float:
        """A tensor or a number."""
        value = self.given(place)
        return value if isinstance(value, Tensor) else self._as_number(value, place)

    def number(self, place: int, name: str = "", default: float | None = None) -> float:
        """A number; `default` when it was left out."""
        value = self.given(place, name)
        if value is None and default is not None:
            return default
        return self._as_number(value, place)

    def limit(self, place: int, name: str) -> Tensor | float | None:
        """A number or tensor that may be missing (a bound of clamp)."""
        value = self.given(place, name)
        return value if value is None or isinstance(value, Tensor) else self._as_number(value, place)

    def flag(self, place: int, name: str = "") -> bool:
        """A truth value, false when left out."""
        return bool(self.given(place, name))

    def integers(self, place: int, name: str = "") -> tuple[int, ...] | None:
        """A list of integers (or one), or None."""
        value = self.given(place, name)
        if value is None:
            return None
        items = value if isinstance(value, list) else [value]
        numbers = tuple(item for item in items if isinstance(item, int))
        if len(numbers) != len(items):
            raise self.unsupported(f"argument {place} holds {value!r}, not integers")
        return numbers

    def dimensions(self, rank: int, place: int, name: str = "dim") -> tuple[int, ...]:
        """Dimensions as non-negative places in ascending order; all of them when left out or empty."""
        given = self.integers(place, name)
        return tuple(sorted(item % rank for item in given)) if given and rank else tuple(range(rank))

    def unsupported(self, reason: str) -> Unsupported:
        """The refusal of this call."""
        return Unsupported(self.operator, reason)

    def _as_number(self, value: Given, place: int) -> float:
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                raise self.unsupported(f"argument {place} is {value!r}, not a number") from None
        if isinstance(value, bool | int | float):
            number = float(value)
            if isinstance(value, int) and not math.isfinite(number):
                raise self.unsupported(f"argument {place} is too large a number")
            return number
        raise self.unsupported(f"argument {place} is {value!r}, not a number")
