"""From a choice in the settings to a checked implementation, and where it came from.

Whatever is wrong with a choice is a SettingsError before any work begins: it names the setting, what was found, and
what does not fit.
"""

from __future__ import annotations

import importlib
import inspect
import re
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from htam_agent.errors import SettingsError
from htam_agent.swapping.choices import MCP_PREFIX
from htam_agent.swapping.fitting import misfits
from htam_agent.swapping.seams import Seam

PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Found(NamedTuple):
    """An implementation that fits. `path` is its import path, `origin` the distribution or file it came from."""

    implementation: object
    path: str
    origin: str


class Place(NamedTuple):
    """An import path that a choice stands for, and the distribution that registered it as an entry point."""

    path: str
    distribution: str


def place_of(seam: Seam, choice: str) -> Place | None:
    """Where a choice leads; None for a built-in name or an MCP server. Raises SettingsError for an unknown name."""
    if choice in seam.built_in or choice.startswith(MCP_PREFIX):
        return None
    if PATH.fullmatch(choice):
        return Place(choice, "")
    if ":" in choice:
        raise SettingsError(
            f"tools.{seam.name} = {choice!r} is no import path.",
            "Write pkg.mod:attr, an entry point's name, mcp:server/tool, or one of the built-in names: "
            f"{', '.join(seam.built_in)}.",
            "tool-path",
        )
    points = {point.name: point for point in metadata.entry_points(group=seam.group)}
    if choice not in points:
        names = ", ".join([*seam.built_in, *sorted(points)])
        raise SettingsError(
            f"tools.{seam.name} = {choice!r}: no such name is built in or an entry point of the group {seam.group}.",
            f"Choose from {names}; or give pkg.mod:attr.",
            "tool-unknown",
        )
    point = points[choice]
    return Place(point.value, f"{point.dist.name} {point.dist.version}" if point.dist else "")


def find(seam: Seam, choice: str) -> Found | None:
    """The checked implementation; None for a built-in name or an MCP server. Raises SettingsError."""
    place = place_of(seam, choice)
    if place is None:
        return None
    label = f"tools.{seam.name} = {choice!r}"
    found = imported(place.path, label)
    # A class that makes the implementation is called with nothing; one that is the factory waits for its task.
    if isinstance(found, type) and not seam.factory:
        problems = misfits(found, seam.protocol(), found.__name__)
        found = None if problems else _made(found, label)
    else:
        problems = []
    if not problems:
        problems = misfits(found, seam.protocol(), place.path.partition(":")[2])
    if not problems and seam.factory:
        problems = _product_misfits(found)
    if problems:
        raise SettingsError(
            f"{label} does not fit: {'; '.join(problems)}.",
            f"It must fit {seam.protocol().__module__}.{seam.protocol().__name__} (docs/swapping.md).",
            "tool-misfit",
        )
    return Found(found, place.path, _origin(place))


def imported(path: str, label: str) -> object:
    """The object at pkg.mod:attr. Raises SettingsError, which begins with `label`."""
    name, _, attribute = path.partition(":")
    try:
        found: object = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise SettingsError(
                f"{label}: there is no module {error.name!r}.", f"Install it, or correct the path. {_looked()}",
                "tool-import",
            ) from error  # fmt: skip
        raise _broken(label, name, error) from error
    except Exception as error:
        raise _broken(label, name, error) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            owner = name if inspect.ismodule(found) else attribute
            raise SettingsError(
                f"{label}: {owner} has no {part!r}.", f"Correct the name after the colon ({name}:NAME).", "tool-import"
            )
        found = getattr(found, part)
    return found


def _looked() -> str:
    return "It is looked for where this Python finds its packages (PYTHONPATH included), not in the current folder."


def _broken(label: str, name: str, error: Exception) -> SettingsError:
    return SettingsError(
        f"{label}: importing {name} fails: {type(error).__name__}: {error}.", "Mend or reinstall it.", "tool-import"
    )


def _made(kind: type, label: str) -> object:
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise SettingsError(
            f"{label}: {kind.__name__} cannot be made without arguments: {error}.",
            "Give its parameters defaults, or name an object that is made already.",
            "tool-misfit",
        ) from error
    try:
        made: object = kind()
    except Exception as error:
        raise SettingsError(
            f"{label}: {kind.__name__}() fails: {type(error).__name__}: {error}.", "Mend it.", "tool-misfit"
        ) from error
    return made


def _product_misfits(factory: object) -> list[str]:
    """What the evaluator that a factory promises lacks, where the promise is a class."""
    from htam_agent.swapping.fitting import return_class
    from htam_agent.swapping.protocols import Evaluator

    product = factory if isinstance(factory, type) else return_class(factory)
    return misfits(product, Evaluator, product.__name__) if product is not None else []


def _origin(place: Place) -> str:
    """The distribution and version, else the file."""
    if place.distribution:
        return place.distribution
    module = place.path.partition(":")[0]
    owners = metadata.packages_distributions().get(module.partition(".")[0], [])
    if owners:
        return f"{owners[0]} {metadata.version(owners[0])}"
    file = getattr(importlib.import_module(module), "__file__", None)
    return str(Path(file)) if file else module
