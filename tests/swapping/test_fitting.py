"""Whether an object fits a Protocol: by members, by the call, by annotations."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import pytest

from htam_agent.coding.base import Coder
from htam_agent.coding.template import TemplateCoder
from htam_agent.evaluation.bench import Bench
from htam_agent.memory.embed import Embedder, HashingEmbedder
from htam_agent.swapping.fitting import members, misfits
from htam_agent.swapping.protocols import Compiler, Evaluator


class Base:
    pass


class Derived(Base):
    pass


class Wanted(Protocol):
    size: int

    @property
    def label(self) -> str: ...

    def work(self, value: Derived, *, deep: bool = True) -> Base: ...


class Fits:
    size = 3
    label = "it"

    def work(self, value: Base, deep: bool = False, more: int = 0) -> Derived:
        return Derived()


class Loose(Fits):
    """Without annotations, and with everything else that may be there."""

    def work(self, *arguments, **options):
        return None


class Promises(Fits):
    async def work(self, value: Any, deep: bool | None = False) -> Derived:
        return Derived()


class Awaits(Fits):
    def work(self, value: Derived | str, deep: object = False) -> Awaitable[Base]:
        raise NotImplementedError


def changed(**members: object) -> object:
    return type("Changed", (Fits,), members)()


def test_members_are_those_of_the_protocol() -> None:
    assert members(Wanted) == ["size", "label", "work"]
    assert set(members(Compiler)) == {"version", "build"}


@pytest.mark.parametrize("kind", [Fits, Loose, Promises, Awaits])
def test_what_fits_fits_as_an_object_and_as_a_class(kind: type) -> None:
    assert misfits(kind(), Wanted) == []
    assert misfits(kind, Wanted) == []


def test_the_built_in_implementations_fit_their_protocols() -> None:
    assert misfits(HashingEmbedder(), Embedder) == []
    assert misfits(TemplateCoder({}), Coder) == []
    assert misfits(Bench, Evaluator) == []


def needs_more(self: object, value: Derived, deep: bool, key: str) -> Base: ...
def takes_less(self: object, value: Derived) -> Base: ...
def takes_other(self: object, value: int, deep: bool = True) -> Base: ...
def gives_other(self: object, value: Derived, deep: bool = True) -> str: ...
def gives_wider(self: object, value: Derived, deep: bool = True) -> Base | str: ...
def gives_nothing(self: object, value: Derived, deep: bool = True) -> None: ...


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (object(), ["no attribute size", "no attribute label", "no method work(value, deep)"]),
        (changed(work=3), ["it.work is no method but an int"]),
        (changed(size="large"), ["it.size is a str; int is needed"]),
        (changed(label=7), ["it.label is an int; str is needed"]),
        (changed(work=needs_more), ["missing a required argument: 'key'"]),
        (changed(work=takes_less), ["'deep'"]),
        (changed(work=takes_other), ["takes value as int; it will be given Derived"]),
        (changed(work=gives_other), ["annotated to return str; Base is needed"]),
        (changed(work=gives_wider), ["Base is needed"]),
        (changed(work=gives_nothing), ["Base is needed"]),
    ],
)
def test_what_does_not_fit_is_named(found: object, words: list[str]) -> None:
    said = "; ".join(misfits(found, Wanted))
    assert all(word in said for word in words), said
