"""Tasks that a protocol leaves out, recognised by their content or by the name of their file.

KernelBench-Verified leaves out three tasks of KernelBench's level 2, whose outputs hardly depend on their inputs: 23 is
the mean of what a group norm has made zero in the mean, 80 subtracts a maximum's mean from itself, 83 clamps between
zero and one what it has bounded by zero from above.
"""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path

from htam_agent.syntax import parse
from htam_agent.task import Task
from htam_agent.words import Protocol

NAMES: dict[str, str] = {
    "conv3d_groupnorm_mean": "KernelBench L2/23",
    "gemm_max_subtract_gelu": "KernelBench L2/80",
    "conv3d_groupnorm_min_clamp_dropout": "KernelBench L2/83",
}
"""File names without number and suffix, in lower case."""
FORWARDS: dict[str, str] = {
    "1345f647aeaa8ef67a287866a0c0573a20474df8cff9d1eb7492de7e274fa1df": "KernelBench L2/23",
    "59a2f3cbc021e1bc34b5ad7db395bb73a06deb6a8d9adfe91599531e1452c18c": "KernelBench L2/80",
    "b596d469ce252bc6630736acec722461c33b12a6651c226320c83a4f19a6a785": "KernelBench L2/83",
}
"""SHA-256 of the model's class, docstrings and formatting left out (`outline`): the same task under another name."""
LEAVING_OUT: tuple[Protocol, ...] = ("verified", "verified-fair")


def excluded_protocols(task: Task) -> dict[Protocol, str]:
    """The protocols that leave this task out, with the reason; empty for most tasks. Reads the text, runs nothing."""
    known = _known_task(task)
    if not known:
        return {}
    reason = f"excluded: this is {known}, whose output hardly depends on its input"
    return dict.fromkeys(LEAVING_OUT, reason)


def _known_task(task: Task) -> str:
    if task.kind != "file":
        return ""
    stem = re.sub(r"^\d+_", "", Path(task.path).stem).rstrip("_").lower()
    if stem in NAMES:
        return NAMES[stem]
    try:
        return FORWARDS.get(outline(task.text, task.symbol), "")
    except (OSError, ValueError, SyntaxError):
        return ""  # a text that cannot be read is refused where it is loaded


def outline(text: str, symbol: str) -> str:
    """SHA-256 of a class written out without docstrings and comments; empty where there is no such class."""
    for node in parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == symbol:
            for part in ast.walk(node):
                if isinstance(part, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(part) is not None:
                    part.body = part.body[1:]
            return hashlib.sha256(ast.unparse(node).encode()).hexdigest()
    return ""
