"""KernelBench tasks with smaller sizes, so that every part of the benchmark can be tried on a small machine."""

from __future__ import annotations

import ast
from pathlib import Path


def shrunken(text: str, largest: int) -> str:
    """The task's text with every integer that a module-level name holds (given as a number or by arithmetic on
    numbers) cut down to `largest`."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign):
            continue
        value = _integer(node.value)
        if value is not None and value > largest:
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = f"{line[: node.value.col_offset]}{largest}"
    return "\n".join(lines) + "\n"


def _integer(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _integer(node.left), _integer(node.right)
        return None if left is None or right is None else left * right
    return None


def place_task(source: Path, folder: Path, largest: int | None) -> Path:
    """The task's file: as it is, or a copy in `folder` with smaller sizes."""
    if largest is None:
        return source
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / source.name
    path.write_text(shrunken(source.read_text(encoding="utf-8"), largest), encoding="utf-8")
    return path
