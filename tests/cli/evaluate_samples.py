"""Kernel files as anybody may give them: broken in every way, hostile, and in other forms than ours."""

from __future__ import annotations

import os
from pathlib import Path

from tests.evaluation.samples import FORWARD, TASK, candidate

HANG_SECONDS = "3"
"""The tests' limit of a step: what sleeps is killed after it."""

ORIGINAL_BESIDE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        return x

def get_inputs():
    raise RuntimeError("the kernel file's own inputs are nobody's business")

def get_init_inputs():
    raise RuntimeError("nor are these")

"""
SUBCLASSING = candidate().replace("class ModelNew(nn.Module):", ORIGINAL_BESIDE + "class ModelNew(Model):")
REFERENCE_ALONE = TASK.replace("class Model(", "class ModelNew(")

GOOD: dict[str, str] = {
    "with-the-original-beside-it": "\ufeff" + SUBCLASSING.replace("\n", "\r\n"),
    "printing": candidate("print('y' * 1000, flush=True)\n" + FORWARD, top="import sys\nprint('x' * (3 << 20))"),
}
"""name -> text: each is a correct kernel. The first has the original in it, its inputs, a byte order mark and CRLF."""

BAD: dict[str, tuple[str, str, str]] = {
    "syntax": ("def forward(:\n", "load", "does not parse"),
    "no-modelnew": ("import torch\n", "load", "no class ModelNew"),
    "empty": ("", "load", "no class ModelNew"),
    "null-bytes": ("x = 1\0", "load", "does not parse"),
    "too-long": ("#" * (3 << 20), "load", "larger than 2 MiB"),
    "deep": ("x = " + "(" * 10_000 + ")" * 10_000 + "\n", "load", "does not parse"),
    "reference-alone": (REFERENCE_ALONE, "policy", ""),
    "other-constructor": (
        candidate().replace("def __init__(self, columns):", "def __init__(self, columns, more):"),
        "construct",
        "TypeError",
    ),
    "other-forward": (
        candidate().replace("def forward(self, x, y):", "def forward(self, x):\n        y = x"),
        "run",
        "TypeError",
    ),
    "no-compile": (candidate(kernel="this is no C++"), "compile", ""),
    "exits": (candidate("os._exit(0)"), "run", "exited with code 0"),
    "sleeps": (candidate("import time\ntime.sleep(600)"), "run", "hang"),
    "forks": (
        candidate(
            "for _ in range(3):\n    if os.fork() == 0:\n        import time\n        time.sleep(600)\nos._exit(1)"
        ),
        "run",
        "",
    ),
    "fills-the-disk": (
        candidate(
            "with open(os.path.join(os.environ['TMPDIR'], 'big'), 'wb') as file:\n"
            "    for _ in range(4096):\n        file.write(b'x' * (1 << 20))\n" + FORWARD
        ),
        "run",
        "",
    ),
    "takes-all-memory": (candidate("return torch.zeros(1 << 44)"), "run", "out of memory"),
}
"""name -> (text, stage, part of the reason): each is a failure with a name."""


def write_all(folder: Path) -> list[str]:
    """The files in `folder`, a folder, a missing file, a pipe and a binary file among them; their names in order."""
    (folder / "task.py").write_text(TASK, encoding="utf-8")
    names = [f"{name}.py" for name in (*GOOD, *BAD)]
    for name, text in [*GOOD.items(), *((name, bad[0]) for name, bad in BAD.items())]:
        (folder / f"{name}.py").write_bytes(text.encode())
    (folder / "folder.py").mkdir()
    (folder / "binary.py").write_bytes(bytes(range(256)) * 10)
    os.mkfifo(folder / "pipe.py")
    return [*names, "folder.py", "missing.py", "binary.py", "pipe.py"]
