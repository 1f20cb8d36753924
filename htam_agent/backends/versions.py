"""Versions of installed packages, read from their metadata: nothing is imported."""

from __future__ import annotations

import functools
from importlib import metadata


@functools.cache
def package_version(name: str) -> str:
    """Version of an installed distribution, or an empty string."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def torch_version() -> str:
    """torch's version with its local part ("2.13.0+cpu"), without importing it."""
    return package_version("torch")
