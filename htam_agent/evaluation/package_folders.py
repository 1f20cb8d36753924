"""Where the interpreter and the packages that workers import lie."""

from __future__ import annotations

import functools
import importlib.util
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path


def python_folders() -> Sequence[str]:
    """Where this interpreter and its packages lie."""
    paths = sysconfig.get_paths()
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, paths["purelib"], paths["platlib"], paths["stdlib"]}
    folders |= set(package_folders())
    folders |= {str(Path(folder).resolve()) for folder in folders}
    return sorted(folders)


NEEDED_PACKAGES = ("torch", "numpy", "pydantic", "typing_extensions", "cloudpickle", "cuda", "nvidia", "triton")


@functools.cache
def package_folders() -> tuple[str, ...]:
    """The folders on sys.path that hold what workers import. A user may have put packages where the interpreter does
    not look by itself (PYTHONPATH); other entries of sys.path, such as the current folder, are not for a candidate to
    read.
    """
    folders: list[str] = []
    for name in NEEDED_PACKAGES:
        spec = importlib.util.find_spec(name)
        places: list[str | None] = []
        if spec is not None:
            places += spec.submodule_search_locations or [spec.origin]
        folders += [str(Path(place).parent) for place in places if place is not None]
    return tuple(dict.fromkeys(folders))
