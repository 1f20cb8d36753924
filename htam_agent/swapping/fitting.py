"""Whether an object fits a typed Protocol: members, parameters, and types where they are annotated.

Python's own `isinstance` on a Protocol looks for names alone. Here a method must also take the call as it will be made,
and its annotations, where there are any, must allow the types that go in and promise those that come out. What is not
annotated is checked when it answers (calling.py).
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Union, get_args, get_origin


def misfits(found: object, protocol: type, called: str = "it") -> list[str]:
    """One clause for each way in which `found` does not fit `protocol`; empty when it fits. `found` may be a class, of
    which only the methods are looked at."""
    problems = []
    for name in members(protocol):
        wanted = inspect.getattr_static(protocol, name, None)
        if not inspect.isfunction(wanted):
            problems += [] if isinstance(found, type) else _attribute_misfits(found, name, protocol, called)
            continue
        method = getattr(found, name, None)
        label = called if name == "__call__" else f"{called}.{name}"
        if method is None:
            problems.append(f"{called} has no method {name}{_parameters(wanted)}")
        elif not callable(method):
            problems.append(f"{label} is no method but {_article(type(method).__name__)}")
        else:
            problems += function_misfits(method, wanted, label, unbound=isinstance(found, type))
    return problems


def method_misfits(found: object, protocol: type, called: str) -> list[str]:
    """The same for the methods alone: attributes may be set later, when it is opened."""
    return misfits(type(found), protocol, called)


def members(protocol: type) -> list[str]:
    """The names that a Protocol asks for, in the order of their definition."""
    names: dict[str, None] = {}
    for base in reversed(protocol.__mro__):
        if not getattr(base, "_is_protocol", False) or base is typing.Protocol:
            continue
        for name in (*vars(base).get("__annotations__", {}), *vars(base)):
            if not name.startswith("_") or (name == "__call__" and "__call__" in vars(base)):
                names[name] = None
    return list(names)


def function_misfits(
    given: collections.abc.Callable[..., object],
    wanted: collections.abc.Callable[..., object],
    called: str,
    *,
    unbound: bool = False,
) -> list[str]:
    """The same for one function. `unbound`: `given` still takes its object first, as `wanted` always does."""
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):
        return []  # a function of C: its answers are checked when they come
    parameters = list(inspect.signature(wanted).parameters.values())[1:]
    positional = [item.name for item in parameters if item.kind is not inspect.Parameter.KEYWORD_ONLY]
    named = {item.name: None for item in parameters if item.kind is inspect.Parameter.KEYWORD_ONLY}
    try:
        bound = signature.bind(*([None] if unbound else []), *positional, **named)
    except TypeError as error:
        return [f"{called}{signature_text(signature)} does not take the call {_parameters(wanted)}: {error}"]
    return _type_misfits(given, wanted, called, bound, unbound)


def _type_misfits(
    given: collections.abc.Callable[..., object],
    wanted: collections.abc.Callable[..., object],
    called: str,
    bound: inspect.BoundArguments,
    unbound: bool,
) -> list[str]:
    declared, asked = _hints(given), _hints(wanted)
    problems = []
    # A class that is called makes itself.
    answer = given if isinstance(given, type) else declared.get("return")
    if answer is not None and "return" in asked and not _promises(answer, asked["return"]):
        problems.append(f"{called} is annotated to return {_word(answer)}; {_word(asked['return'])} is needed")
    for name, value in bound.arguments.items():
        sent = value if isinstance(value, str) and value in asked else name
        if name in declared and sent in asked and not _promises(asked[sent], declared[name]):
            problems.append(f"{called} takes {name} as {_word(declared[name])}; it will be given {_word(asked[sent])}")
    return problems


def _attribute_misfits(found: object, name: str, protocol: type, called: str) -> list[str]:
    try:
        value = getattr(found, name)
    except AttributeError:
        return [f"{called} has no attribute {name}"]
    getter = inspect.getattr_static(protocol, name, None)
    hint = _hints(getter.fget).get("return") if isinstance(getter, property) and getter.fget else None
    hint = hint or _hints(protocol).get(name)
    if isinstance(hint, type) and not isinstance(value, hint):
        return [f"{called}.{name} is {_article(type(value).__name__)}; {_word(hint)} is needed"]
    return []


def _hints(source: object) -> Mapping[str, object]:
    """Annotations as types. Where names are not known at run time (imports for type checkers alone), none."""
    if isinstance(source, type) and not getattr(source, "_is_protocol", False):
        source = vars(source).get("__init__", source)
    try:
        return typing.get_type_hints(source)
    except (NameError, TypeError, AttributeError):
        return {}


def _promises(given: object, wanted: object) -> bool:
    """Whether a value of type `given` may go where `wanted` is asked for. Forms that are not understood pass."""
    given = _awaited(given)
    if given is typing.Any or wanted is typing.Any or wanted is object:
        return True
    if _is_union(given):
        return all(_promises(part, wanted) for part in get_args(given))
    if _is_union(wanted):
        return any(_promises(given, part) for part in get_args(wanted))
    if given is None or given is type(None):
        return wanted in (None, type(None))
    left, right = get_origin(given) or given, get_origin(wanted) or wanted
    if not isinstance(left, type) or not isinstance(right, type):
        return True
    if getattr(right, "_is_protocol", False):
        return not misfits(left, right)
    return issubclass(left, right)


def _awaited(hint: object) -> object:
    """What a coroutine comes to."""
    if get_origin(hint) in (collections.abc.Awaitable, collections.abc.Coroutine):
        return get_args(hint)[-1]
    return hint


def _is_union(hint: object) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _word(hint: object) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _article(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def _parameters(function: collections.abc.Callable[..., object]) -> str:
    """The parameters that a method of a Protocol is called with, as text without types."""
    items = list(inspect.signature(function).parameters.values())[1:]
    return f"({', '.join(item.name for item in items)})"


def signature_text(signature: inspect.Signature) -> str:
    """Names of the parameters alone."""
    return f"({', '.join(signature.parameters)})"


def return_class(function: object) -> type | None:
    """The class that a function is annotated to return; None where it is none, or a Protocol."""
    found = _hints(function).get("return")
    return found if isinstance(found, type) and not getattr(found, "_is_protocol", False) else None
