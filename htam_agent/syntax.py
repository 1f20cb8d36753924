"""Python source to a syntax tree, from any thread.

Some versions of CPython, 3.11 among them, count the depth of a tree under construction in one place for all threads
(CPython issue 106905): two threads that parse at once may end with a SystemError. So one thread parses at a time.
"""

from __future__ import annotations

import ast
import threading

_parsing = threading.Lock()


def parse(source: str, filename: str = "<unknown>") -> ast.Module:
    """The tree of a module. Raises what ast.parse raises: SyntaxError, or ValueError for null bytes."""
    with _parsing:
        return ast.parse(source, filename=filename)
