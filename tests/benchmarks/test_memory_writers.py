"""The benchmark of many writers in a small form: real processes, one of them killed and started again."""

from __future__ import annotations

import pytest

from benchmarks.memory_writers import is_sound, trial


@pytest.mark.slow
@pytest.mark.parametrize("way", ["embedded", "server"])
def test_three_writers_one_of_them_killed(way: str) -> None:
    result = trial(way, processes=3, experiences=20, killed=1, seed=0)
    assert result["failed"] == []
    assert result["killed"] == 1
    assert result["expected"] == 60
    assert is_sound(result), result


@pytest.mark.parametrize("change", [{"lost": ["a"]}, {"doubled": 1}, {"stored": 59}, {"with_vector": 59}])
def test_a_loss_is_seen(change: dict[str, object]) -> None:
    sound = {"stored": 60, "expected": 60, "with_vector": 60, "lost": [], "doubled": 0}
    assert is_sound(sound)
    assert not is_sound({**sound, **change})
