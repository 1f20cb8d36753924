"""The seed: the records that ship with the package, and how a store takes them over."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from htam_agent.errors import StoreError
from htam_agent.memory.model import Direction, Strategy, Transition

FOLDER = Path(__file__).parent / "seed"

T = TypeVar("T", Direction, Transition)


@dataclass(frozen=True)
class Seed:
    """What a memory knows before anything was measured."""

    directions: tuple[Direction, ...]
    strategies: tuple[Strategy, ...]
    transitions: tuple[Transition, ...]

    @property
    def digest(self) -> str:
        """Hash of the content, in whatever order it was read: a store that carries it has this seed already."""
        records = (*self.directions, *self.strategies, *self.transitions)
        lines = sorted(type(record).__name__ + record.model_dump_json() for record in records)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def load_seed(folder: Path = FOLDER) -> Seed:
    """The seed of `folder`: directions.yaml, transitions.yaml and every YAML file below strategies/.

    Raises StoreError naming file and record when one does not parse or fit its model.
    """
    from htam_agent.memory.seedfiles import load_strategies

    return Seed(
        directions=_read(folder / "directions.yaml", Direction),
        strategies=tuple(load_strategies(folder / "strategies", "seed").values()),
        transitions=_read(folder / "transitions.yaml", Transition),
    )


def _read(path: Path, model: type[T]) -> tuple[T, ...]:
    """A YAML list of records."""
    import yaml

    try:
        # The C loader reads the seed six times as fast as the Python one.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        items = TypeAdapter(list[object]).validate_python(yaml.load(path.read_text(encoding="utf-8"), Loader=loader))
        return tuple(model.model_validate(item) for item in items)
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise StoreError(
            f"The seed file {str(path)!r} cannot be used: {error}.", "Install htam_agent again.", "memory-seed"
        ) from error
