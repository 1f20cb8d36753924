"""Task: a PyTorch operator to make faster, named but not executed.

A task's code runs in a worker process only (evaluation/loading.py); this module reads its text and nothing more.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from htam_agent.errors import TaskError
from htam_agent.syntax import parse
from htam_agent.words import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

EXAMPLE = "A task file defines `class Model(nn.Module)` and `get_inputs()`, and may define `get_init_inputs()`."


class Task(Record):
    """Where an operator comes from. `kind`:

    - `file`: a KernelBench-form file; `symbol` is the class ("Model" unless FILE:Class was given).
    - `factory`: `path` is the file of an importable module, `symbol` a function that takes nothing and returns
      (nn.Module, inputs).
    - `module`: `path` is a pickle of (nn.Module, inputs) made by `Task.from_module`.

    `digest` is the SHA-256 of the file at `path` when the task was named.
    """

    name: str
    kind: Literal["file", "factory", "module"]
    path: str
    symbol: str = "Model"
    digest: str

    @property
    def id(self) -> str:
        """Name and content: stable over machines and folders."""
        return f"{self.name}-{self.digest[:12]}"

    @property
    def spelled(self) -> str:
        """As `parse` takes it: FILE:Class or pkg.mod:factory; for a module's pickle, its file alone."""
        if self.kind == "file":
            return f"{self.path}:{self.symbol}"
        return self.symbol if self.kind == "factory" else self.path

    @property
    def text(self) -> str:
        """The source that a reader may see; empty for a pickled module."""
        return "" if self.kind == "module" else Path(self.path).read_text(encoding="utf-8")

    def checked_bytes(self) -> bytes:
        """The content of the file at `path`, which is the one that was named.

        Raises TaskError when it is gone or changed. A pickle is code: nothing of it is loaded before this check.
        """
        try:
            data = Path(self.path).read_bytes()
        except OSError as error:
            raise TaskError(
                f"The task file {self.path!r} cannot be read: {error.strerror}.",
                "Put it back, or make the task again.",
                "task-missing",
            ) from error
        if hashlib.sha256(data).hexdigest() != self.digest:
            raise TaskError(
                f"The task file {self.path!r} is not the one that was named: its SHA-256 differs from the task's.",
                "Put the old content back, or make the task again.",
                "task-changed",
            )
        return data

    def kept_in(self, folder: Path) -> Task:
        """The same task, with a pickle copied into `folder`, which then no longer depends on the cache.

        Raises TaskError when the pickle is gone or changed, or cannot be copied.
        """
        if self.kind != "module":
            return self
        path = folder / "task.pickle"
        _keep(path, self.checked_bytes())
        return self.model_copy(update={"path": str(path)})

    @classmethod
    def parse(cls, text: str) -> Task:
        """FILE, FILE:Class or pkg.mod:factory.

        Raises TaskError when the file is missing, does not parse, or lacks the class or `get_inputs`.
        """
        left, _, symbol = text.rpartition(":") if ":" in text else (text, "", "")
        if left.endswith(".py") or (not symbol and text.endswith(".py")):
            return _from_file(Path(left or text), symbol or "Model")
        if symbol and re.fullmatch(r"[A-Za-z_][\w.]*", left) and not Path(text).exists():
            return _from_factory(left, symbol)
        if Path(text).is_file():
            return _from_file(Path(text), "Model")
        raise TaskError(
            f"There is no task at {text!r}: no such file, and not of the form pkg.mod:factory.",
            "Give FILE, FILE:Class or pkg.mod:factory. " + EXAMPLE,
            "task-missing",
        )

    @classmethod
    def from_module(cls, module: nn.Module, example_inputs: Sequence[object], name: str | None = None) -> Task:
        """A task from a live module and the positional inputs of its forward (tensors or plain values).

        The pair is pickled (by value for classes of a notebook or of __main__) into the user's own cache folder; a run
        keeps its own copy. New inputs of the same shapes are drawn for every trial: random tensors like the examples.

        Raises TaskError when the inputs are no list or tuple, or the cache folder belongs to somebody else or cannot be
        written.
        """
        import cloudpickle

        # A tensor is a sequence of its rows, and a dict one of its keys: neither is meant.
        if not isinstance(example_inputs, list | tuple):
            raise TaskError(
                f"The example inputs are a {type(example_inputs).__name__}.",
                "Give a list or tuple of the positional arguments of forward: Task.from_module(module, [x]).",
                "task-inputs",
            )
        if not callable(getattr(module, "forward", None)):
            raise TaskError(
                f"The module is a {type(module).__name__} without forward.", "Give a torch.nn.Module.", "task-module"
            )
        payload = cloudpickle.dumps((module, tuple(example_inputs)))
        digest = hashlib.sha256(payload).hexdigest()
        path = _private_folder() / f"{digest}.pickle"
        _keep(path, payload)
        return cls(name=name or type(module).__name__, kind="module", path=str(path), symbol="", digest=digest)


def _private_folder() -> Path:
    """Where pickles lie until a run has its copy: only this user may write there, since they are code."""
    from htam_agent.backends.cache import cache_home

    folder = cache_home() / "tasks"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            folder.chmod(0o700)
            return folder
    except OSError as error:
        raise TaskError(
            f"The folder {str(folder)!r} for pickled tasks cannot be used: {error.strerror}.",
            "Set XDG_CACHE_HOME to a folder that you may write to.",
            "task-folder",
        ) from error
    raise TaskError(
        f"The folder {str(folder)!r} for pickled tasks is not a folder of this user.",
        "Remove it, or set XDG_CACHE_HOME to a folder of your own.",
        "task-folder",
    )


def _keep(path: Path, payload: bytes) -> None:
    from htam_agent.backends.cache import write_atomically

    try:
        write_atomically(path, payload)
    except OSError as error:
        raise TaskError(
            f"The pickled task {str(path)!r} cannot be written: {error.strerror}.",
            "Free some space, or give a folder that you may write to (XDG_CACHE_HOME, or the setting `out`).",
            "task-folder",
        ) from error


def _from_file(path: Path, symbol: str) -> Task:
    try:
        data = path.read_bytes()
        source = data.decode("utf-8")
    except OSError as error:
        raise TaskError(
            f"The task file {str(path)!r} cannot be read: {error.strerror}.", "Check the path.", "task-missing"
        ) from error
    except UnicodeDecodeError as error:
        raise TaskError(f"The task file {str(path)!r} is not UTF-8 text.", EXAMPLE, "task-syntax") from error
    try:
        tree = parse(source, filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise TaskError(
            f"The task file {str(path)!r} does not parse: {error.args[0]}" + (f" (line {line})." if line else "."),
            "Mend the file.",
            "task-syntax",
        ) from error
    names = _top_level_names(tree)
    if "*" not in names:
        for wanted in (symbol, "get_inputs"):
            if wanted not in names:
                raise TaskError(f"The task file {str(path)!r} defines no `{wanted}`.", EXAMPLE, "task-incomplete")
    return Task(
        name=path.stem,
        kind="file",
        path=str(path.resolve()),
        symbol=symbol,
        digest=hashlib.sha256(data).hexdigest(),
    )


def _top_level_names(tree: ast.Module) -> set[str]:
    """Names bound anywhere outside functions and classes; "*" when a star import may bind any."""
    names: set[str] = set()
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        pending.extend(ast.iter_child_nodes(node))
    return names


def _from_factory(module: str, symbol: str) -> Task:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise TaskError(
            f"The module {module!r} cannot be found: {error}.", "Check PYTHONPATH.", "task-missing"
        ) from error
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise TaskError(f"There is no module {module!r}.", "Check the name and PYTHONPATH.", "task-missing")
    data = Path(spec.origin).read_bytes()
    return Task(
        name=symbol,
        kind="factory",
        path=spec.origin,
        symbol=f"{module}:{symbol}",
        digest=hashlib.sha256(data).hexdigest(),
    )
