"""What recurs in a strategy's failures becomes a pitfall of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from htam_agent.failures import FailureCause
from htam_agent.memory.model import Experience
from htam_agent.memory.pitfalls import SHOWN, WORDS, learned_pitfalls
from tests.support.memory import experience


def tried(name: str, cause: FailureCause, *, step: int = 1, used: str = "wide-loads", **changes: object) -> Experience:
    verdict = "correct" if cause == "unknown" else "wrong"
    share = 0.5 if cause == "unknown" else None
    return experience(name, "wide", used, share, **{"verdict": verdict, "cause": cause, "step": step, **changes})


def test_a_cause_that_recurs_is_told_with_its_frequency() -> None:
    known = [tried("a", "boundary", step=1), tried("b", "boundary", step=2), tried("c", "unknown", step=3)]
    (pitfall,) = learned_pitfalls(known, "wide-loads")
    assert pitfall == f"learned: {WORDS['boundary']} in 2 of 3 tries"
    assert learned_pitfalls(known, "wide-stores") == []


def test_one_slip_and_a_repair_that_fails_alike_are_no_pitfall() -> None:
    assert learned_pitfalls([tried("a", "layout")], "wide-loads") == []
    assert learned_pitfalls([tried("a:0", "layout"), tried("a:1", "layout")], "wide-loads") == []


def test_what_says_nothing_of_a_kernel_is_no_pitfall() -> None:
    quarantined = [tried(str(n), "rules", step=n, verdict="quarantined") for n in range(4)]
    assert learned_pitfalls(quarantined, "wide-loads") == []


@given(st.lists(st.tuples(st.sampled_from(sorted(WORDS)), st.integers(1, 4)), max_size=20))
def test_the_most_frequent_come_first_and_few_are_told(found: list[tuple[FailureCause, int]]) -> None:
    known = [tried(str(n), cause, step=step) for n, (cause, step) in enumerate(found)]
    pitfalls = learned_pitfalls(known, "wide-loads")
    counts = [int(text.rpartition(" in ")[2].split()[0]) for text in pitfalls]
    assert counts == sorted(counts, reverse=True)
    assert len(pitfalls) <= SHOWN
    assert all(count >= 2 for count in counts)
