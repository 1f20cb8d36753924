"""Pruning: exactly what the rule names goes, least useful first, and never without being asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.errors import UsageError
from htam_agent.memory.model import Experience
from htam_agent.memory.pruning import PruneRule, chosen, prune
from htam_agent.memory.store import MemoryStore
from htam_agent.verdict import DeviceFacts
from tests.support.memory import SEED, experience

NOW = datetime(2026, 6, 1, tzinfo=UTC)
GPU = DeviceFacts(backend="cuda", name="A GPU", architecture="sm_90")


def aged(name: str, days: float, share: float | None = 0.5, **changes: object) -> Experience:
    created = (NOW - timedelta(days=days)).isoformat(timespec="seconds")
    return experience(name, "wide", "wide-loads", share, **{"created": created, **changes})


RECORDS = [
    aged("old", 100), aged("older", 200), aged("new", 1), aged("undated", 0, created=""), aged("failed", 50, None),
    aged("elsewhere", 100, device=GPU), aged("other-task", 100, task="relu-0123456789ab"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "going"),
    [
        (PruneRule(older_than_days=90), ["older", "old", "elsewhere", "other-task"]),
        (PruneRule(older_than_days=90, device="A CPU"), ["older", "old", "other-task"]),
        (PruneRule(device="sm_90"), ["elsewhere"]),
        (PruneRule(device="cuda"), ["elsewhere"]),
        (PruneRule(task="relu"), ["other-task"]),
        (PruneRule(task="relu-0123456789ab"), ["other-task"]),
        (PruneRule(verdict="failed"), ["failed"]),
        (PruneRule(verdict="wrong"), []),
        (PruneRule(keep=5), ["undated", "older"]),
        (PruneRule(keep=0, device="A GPU"), ["elsewhere"]),
        (PruneRule(keep=100), []),
    ],
)
def test_what_goes(rule: PruneRule, going: list[str]) -> None:
    assert [record.id for record in chosen(RECORDS, rule, NOW)] == going


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30), st.integers(0, 30))
def test_keeping_drops_the_repetitions_first(steps: list[tuple[int, bool]], keep: int) -> None:
    """Whatever is dropped, a step of which a record was dropped has no fewer left than another kind of step has,
    but by one."""
    records = [aged(f"{n}", n, 0.5 if good else None, task=f"t{kind}-0") for n, (kind, good) in enumerate(steps)]
    going = {record.id for record in chosen(records, PruneRule(keep=keep), NOW)}
    assert len(records) - len(going) == min(keep, len(records))
    left: dict[tuple[str, str], int] = {}
    cut = set()
    for record in records:
        step = (record.task, record.verdict)
        left[step] = left.get(step, 0) + (record.id not in going)
        if record.id in going:
            cut.add(step)
    for step in cut:
        assert left[step] >= max(left.values()) - 1


def test_a_dry_run_removes_nothing_and_the_rest_is_found_after_reopening(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    with MemoryStore.open(folder, seed=SEED) as store:
        store.add_experiences(RECORDS)
        rule = PruneRule(older_than_days=90)
        report = prune(store, rule, now=NOW)
        assert not report.done
        assert report.by_device == {"A CPU": 3, "A GPU": 1}
        assert len(store.experiences) == 7
        assert prune(store, rule, dry_run=False, now=NOW).going == report.going
        left = [record.id for record in store.experiences]
        assert left == ["new", "undated", "failed"]
    with MemoryStore.open(folder, seed=SEED) as again:
        assert sorted(record.id for record in again.experiences) == sorted(left)


def test_an_empty_rule_is_refused(tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path / "memory", seed=SEED) as store, pytest.raises(UsageError, match="may go"):
        prune(store, PruneRule())


@pytest.mark.parametrize("days", [1e12, float("nan"), float("inf"), -1.0])
def test_an_age_that_is_none_is_refused(tmp_path: Path, days: float) -> None:
    with MemoryStore.open(tmp_path / "memory", seed=SEED) as store, pytest.raises(UsageError, match="no age in days"):
        prune(store, PruneRule(older_than_days=days))
