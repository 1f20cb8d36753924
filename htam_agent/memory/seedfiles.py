"""Strategies as YAML: the package's seed and a user's own files have one form, a list of Strategy records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from htam_agent.errors import StoreError
from htam_agent.memory.model import Strategy

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SEED = Path(__file__).parent / "seed"
FORM = "A strategy file is a YAML list of records with id, direction, backend, title, how, slot, block and edit."


def load_strategies(
    places: Path | str | Iterable[Path | str], provenance: Literal["seed", "user", "learned"] | None = None
) -> dict[str, Strategy]:
    """Strategies by id from files and folders (searched for *.yaml and *.yml, in name order). A later one replaces an
    earlier one of the same id, so that a user's file can override the seed; twice in one file is an error.

    Raises StoreError with the code "strategy-file", which names the file, the entry and the field.
    """
    several = [places] if isinstance(places, Path | str) else places
    strategies: dict[str, Strategy] = {}
    for place in several:
        for file in _files(Path(place)):
            strategies.update(_load(file, provenance))
    return strategies


def seed_strategies() -> dict[str, Strategy]:
    """The strategies that the package ships, for every backend."""
    return load_strategies(SEED / "strategies", "seed")


def _files(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(path for path in place.rglob("*") if path.suffix in (".yaml", ".yml") and path.is_file())
    if place.is_file():
        return [place]
    raise _error(f"There is no strategy file or folder at {str(place)!r}.")


def _load(file: Path, provenance: Literal["seed", "user", "learned"] | None) -> dict[str, Strategy]:
    import yaml

    try:
        entries = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _error(f"The strategy file {str(file)!r} cannot be read: {error}") from error
    if not isinstance(entries, list):
        raise _error(f"The strategy file {str(file)!r} holds no list.")
    answer: dict[str, Strategy] = {}
    for place, entry in enumerate(entries, start=1):
        if provenance is not None and isinstance(entry, dict):
            entry = {**entry, "provenance": provenance}
        try:
            strategy = Strategy.model_validate(entry)
        except ValidationError as error:
            problems = "; ".join(_say(item) for item in error.errors())
            name = entry.get("id", "") if isinstance(entry, dict) else ""
            raise _error(f"Entry {place} {name!r} of the strategy file {str(file)!r} is wrong: {problems}.") from error
        if strategy.id in answer:
            raise _error(f"The strategy file {str(file)!r} has two entries with the id {strategy.id!r}.")
        answer[strategy.id] = strategy
    return answer


def _say(item: ErrorDetails) -> str:
    field = ".".join(str(part) for part in item["loc"]) or "the entry"
    return f"{field}: {item['msg']}"


def _error(message: str) -> StoreError:
    return StoreError(message, FORM, "strategy-file")
