"""The stopwatch, native and without a compiler: each call timed, the last result of each callable kept."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator

import pytest

from htam_agent.evaluation import stopwatch
from htam_agent.evaluation.native import NativeLibrary
from htam_agent.evaluation.stopwatch import Stopwatch


@pytest.fixture(params=["native", "without a compiler"])
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopwatch]:
    stopwatch.native_clock.cache_clear()
    if request.param != "native":
        monkeypatch.setattr(stopwatch, "native_library", lambda _: NativeLibrary(reason="no C compiler"))
    made = Stopwatch("cpu")
    assert made.missing == ("" if request.param == "native" else "no C compiler")
    yield made
    stopwatch.native_clock.cache_clear()


def test_each_call_is_timed_and_the_last_results_are_kept(watch: Stopwatch) -> None:
    done: list[str] = []

    def call(name: str) -> str:
        done.append(name)
        time.sleep(0.002 if name == "a" else 0.006)
        return f"{name}{len(done)}"

    calls = [lambda: call("a"), lambda: call("b")]
    times, kept = watch.block(calls, 5)
    assert done == ["a", "a", "b", "a", "b", "a"], "the first call of a block is not timed"
    assert kept == ["a6", "b5"]
    assert watch.kept is kept
    assert len(times) == 5
    assert min(times) >= 2.0
    assert min(times[1], times[3]) >= 6.0
    assert watch.first_ms >= 2.0
    watch.block(calls[:1], 3, alone=True)
    assert done[6:] == ["a"] * 3
    assert watch.kept == ["a9"]


def test_a_result_is_freed_before_the_same_callable_is_called_again(watch: Stopwatch) -> None:
    class Result:
        pass

    alive: list[int] = []
    known: list[weakref.ref[Result]] = []

    def call() -> Result:
        alive.append(sum(reference() is not None for reference in known))
        made = Result()
        known.append(weakref.ref(made))
        return made

    watch.block([call, call], 6)
    assert alive == [0, 0, 1, 1, 1, 1, 1]
    watch.back_to_back([call, call], 4)
    assert alive[7:] == [1, 1, 1, 1]


def test_an_exception_of_a_call_arrives_as_it_is(watch: Stopwatch) -> None:
    def call() -> None:
        raise ValueError("of the call")

    with pytest.raises(ValueError, match="of the call"):
        watch.block([call], 3)
    with pytest.raises(ValueError, match="of the call"):
        watch.block([call], 3, alone=True)
    with pytest.raises(ValueError, match="of the call"):
        watch.back_to_back([call], 3)


def test_pythons_clocks_are_no_part_of_the_native_one(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Stopwatch("cpu")
    assert not watch.missing
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "time"):
        monkeypatch.setattr(time, name, lambda: 0)
    times, _ = watch.block([lambda: time.sleep(0.005)], 2)
    assert min(times) >= 5.0


def test_warming_runs_every_callable_twice_at_least() -> None:
    done: list[int] = []
    assert Stopwatch("cpu").warm([lambda: done.append(0), lambda: done.append(1)], 0.0) >= 0.0
    assert sorted(done) == [0, 0, 1, 1]
