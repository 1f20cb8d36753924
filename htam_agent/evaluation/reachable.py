"""Which functions of a candidate's text its ModelNew can come to, by names: what else the file holds is not judged.

A retained Model, a test under `if __name__ == "__main__":` and helpers that nothing uses are no part of the product.
Names are followed wherever they are mentioned, so that too much is reached rather than too little; what is called in
other ways (globals, getattr) is seen when it runs (watching.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

CALLED = ("forward", "__call__")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Reachable:
    """The text of one file. `forwards`: functions named as in CALLED that ModelNew can come to; `parts`: what those
    can come to, themselves included: functions, and the values of names that are bound at the top level."""

    def __init__(self, tree: ast.Module) -> None:
        self._classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        self._named: dict[str, list[ast.AST]] = {}
        for name, node in _definitions(tree):
            self._named.setdefault(name, []).append(node)
        model = self._classes.get("ModelNew")
        begin = self._methods(model) if model is not None else [node for node in tree.body if not _is_main(node)]
        everything = self._from(begin)
        self.forwards = [node for node in everything if isinstance(node, Function) and node.name in CALLED]
        self.parts = self._from(self.forwards)

    def _from(self, begin: Iterable[ast.AST]) -> list[ast.AST]:
        found: dict[ast.AST, None] = {}
        waiting = list(begin)
        while waiting:
            node = waiting.pop()
            if node in found:
                continue
            if isinstance(node, ast.ClassDef):
                waiting.extend(self._methods(node))
                continue
            found[node] = None
            for name in _mentioned(node):
                waiting.extend(self._named.get(name, ()))
                if name in self._classes:
                    waiting.append(self._classes[name])
        return list(found)

    def _methods(self, model: ast.ClassDef, depth: int = 0) -> list[ast.AST]:
        """What an object of the class can run: its own body, and of its bases what it does not override or calls."""
        own: list[ast.AST] = [*model.body, *model.decorator_list]
        overridden = {node.name for node in model.body if isinstance(node, Function)} - set(_of_bases(model))
        for base in model.bases:
            inherited = self._classes.get(base.id) if isinstance(base, ast.Name) and depth < 8 else None
            if inherited is not None:
                methods = self._methods(inherited, depth + 1)
                own.extend(node for node in methods if not (isinstance(node, Function) and node.name in overridden))
        return own


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Names and what they stand for: functions anywhere but in classes named Model, and values at the top level."""
    retained = {
        part for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model" for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, Function) and node not in retained and node.name not in CALLED:
            yield node.name, node
    for statement in tree.body:
        if _is_main(statement) or isinstance(statement, Function | ast.ClassDef):
            continue
        for node in ast.walk(statement):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.AugAssign):
                targets = [node.target]
            for target in targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        yield part.id, node


def _mentioned(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def _of_bases(model: ast.ClassDef) -> Iterator[str]:
    """Names of methods that the class takes from its bases: `super().forward`, `Model.forward`."""
    bases = {base.id for base in model.bases if isinstance(base, ast.Name)}
    for part in ast.walk(model):
        if isinstance(part, ast.Attribute):
            owner = part.value.func if isinstance(part.value, ast.Call) else part.value
            if isinstance(owner, ast.Name) and (owner.id == "super" or owner.id in bases):
                yield part.attr


def _is_main(node: ast.AST) -> bool:
    """Whether a statement is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )
