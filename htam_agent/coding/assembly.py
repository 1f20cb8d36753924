"""Puts the vendored launcher into a model's candidate, and takes it out of what the model reads.

The model writes the device code and `ModelNew`; the launcher (build, cache, call) is always the same text, so it is
cheaper and surer to insert it than to have it repeated. A file that defines its own launcher stays as it is.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from htam_agent.syntax import parse
from htam_agent.words import Backend

LAUNCHER_NAME: dict[Backend, str] = {"cpp": "load_kernels", "cuda": "CudaKernels"}
"""What a candidate calls with its device code."""
OMITTED = "# (the launcher stands here; the harness puts it in)"


@functools.cache
def launcher_text(backend: Backend) -> str:
    """The launcher that stands in every candidate of this backend."""
    text = (Path(__file__).parent / "launchers" / f"{backend}.py").read_text(encoding="utf-8")
    # Without the module's docstring and its __future__ import, which must stand first in a file.
    return text[text.index("import ctypes") :].strip("\n")


def assemble(source: str, backend: Backend) -> str:
    """The complete candidate: with the launcher behind its imports, unless it has the names that it uses already.

    `source` parses as Python (parsing.py has seen to it).
    """
    tree = parse(source)
    name = LAUNCHER_NAME[backend]
    used = any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
    if not used or name in _defined(tree):
        return source
    last = 0
    for index, node in enumerate(tree.body):
        docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (docstring or isinstance(node, ast.Import | ast.ImportFrom)):
            break
        last = node.end_lineno or last
    lines = source.splitlines()
    head = [line for line in lines[:last] if line.strip() != OMITTED]
    rest = [line for line in lines[last:] if line.strip() != OMITTED]
    return "\n".join([*head, "", launcher_text(backend), "", *rest]).strip("\n") + "\n"


def without_launcher(source: str, backend: Backend) -> str:
    """The candidate as a model reads it: one line in the launcher's place."""
    return source.replace(launcher_text(backend), OMITTED, 1)


def _defined(tree: ast.Module) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
