"""Routers as a table: whatever the candidates' mixture, the step goes on and ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.types import Send

from htam_agent.graph import routes
from htam_agent.graph.runner import recursion_limit
from htam_agent.graph.state import Candidate, Draft, State, merge_candidates
from htam_agent.runs.records import RunOptions
from htam_agent.task import Task

TASK = Task(name="task", kind="file", path="task.py", digest="0")


def state_of(statuses: list[str]) -> State:
    made = [Candidate(step=1, index=index, status=status) for index, status in enumerate(statuses)]
    return {
        "task": TASK,
        "run": "runs/one",
        "draft": Draft(step=1),
        "best": None,
        "past": [],
        "tried": [],
        "seconds": 0.0,
        "candidates": {candidate.key: candidate for candidate in made},
        "stop": "",
    }


def route(answer: str | list[Send]) -> str:
    """The node that is next; sends all go to generate."""
    return answer if isinstance(answer, str) else "generate"


def test_a_single_candidate_takes_the_drawn_path() -> None:
    assert routes.after_compile(state_of(["failed"])) == "learn"
    assert routes.after_compile(state_of(["built"])) == "run"
    assert routes.after_compile(state_of(["broken"])) == "repair"
    assert routes.after_run(state_of(["correct"])) == "profile"
    assert routes.after_run(state_of(["broken"])) == "repair"
    assert route(routes.after_repair(state_of(["planned"]))) == "generate"
    assert routes.after_repair(state_of(["failed"])) == "learn"


def test_a_failed_candidate_does_not_hold_up_the_others() -> None:
    assert routes.after_repair(state_of(["failed", "built"])) == "run"
    assert routes.after_repair(state_of(["failed", "correct"])) == "profile"
    assert routes.after_compile(state_of(["failed", "built"])) == "run"


def test_each_planned_candidate_is_sent_alone_with_what_its_coder_sees() -> None:
    state = state_of(["planned", "correct", "planned"])
    sent = routes.write_each(state)
    assert [each.node for each in sent] == ["generate", "generate"]
    assert [list(each.arg["candidates"]) for each in sent] == [["1/0"], ["1/2"]], "in order, one each"
    assert all("stop" not in each.arg and each.arg["task"] == TASK for each in sent)
    assert routes.after_retrieve(state_of([])) == "learn"


NEXT = {
    "generate": ({"planned"}, ("written", "failed"), lambda state: "compile"),
    "compile": ({"written"}, ("built", "broken"), routes.after_compile),
    "run": ({"built"}, ("correct", "broken"), routes.after_run),
    "repair": ({"broken"}, ("planned", "failed"), routes.after_repair),
}


@given(st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_step_reaches_learn_with_nothing_left_undone(count: int, random: object) -> None:
    """A random walk over node outcomes with at most 3 attempts each always ends in learn, with all work done."""
    choose = random.choice  # type: ignore[attr-defined]
    statuses, attempts, node = ["planned"] * count, [0] * count, "generate"
    for _ in range(100):
        if node == "profile":
            statuses = ["profiled" if status == "correct" else status for status in statuses]
            break
        if node == "learn":
            break
        takes, outcomes, router = NEXT[node]
        for index, status in enumerate(statuses):
            if status in takes:
                allowed = outcomes if node != "repair" or attempts[index] < 3 else ("failed",)
                statuses[index] = choose(allowed)
                attempts[index] += statuses[index] == "planned"
        node = route(router(state_of(statuses)))
    assert set(statuses) <= {"profiled", "failed"}


def most_nodes(candidates: int, repairs: int) -> int:
    """Nodes of the longest step: one candidate after the other breaks, as late and as often as it may."""
    statuses, attempts, node, passed = ["planned"] * candidates, [0] * candidates, "generate", 2
    while node not in ("profile", "learn"):
        passed += 1
        takes, outcomes, router = NEXT[node]
        turn = next((index for index, status in enumerate(statuses) if status in takes), None)
        for index, status in enumerate(statuses):
            if status not in takes:
                continue
            if node in ("run", "compile"):
                late = node == "run" and index == turn
                statuses[index] = "broken" if late else "built" if node == "compile" else "correct"
            elif node == "repair":
                spent = attempts[index] >= repairs
                statuses[index] = "failed" if spent else "planned"
                attempts[index] += not spent
            else:
                statuses[index] = outcomes[0]
        node = route(router(state_of(statuses)))
    return passed + 2


@pytest.mark.parametrize("candidates", [1, 2, 16])
@pytest.mark.parametrize("repairs", [0, 2, 16])
@pytest.mark.parametrize("steps", [1, 6])
def test_the_guard_leaves_room_for_every_repair_and_every_opening(candidates: int, repairs: int, steps: int) -> None:
    context = SimpleNamespace(
        options=RunOptions(backend="cpp", steps=steps, candidates=candidates, repairs=repairs),
        memory=SimpleNamespace(strategies=dict.fromkeys(range(30))),
    )
    openings = 30 * 4
    assert recursion_limit(context) >= steps * (most_nodes(candidates, repairs) + openings) + 2


def test_only_the_newest_step_stays_in_the_state() -> None:
    old, new = Candidate(step=1, index=0), Candidate(step=2, index=0)
    assert merge_candidates({old.key: old}, {new.key: new}) == {new.key: new}


@given(st.integers(1, 4), st.integers(1, 4))
def test_a_step_that_is_opened_again_forgets_its_earlier_candidates(before: int, after: int) -> None:
    def opening(number: int, count: int) -> dict[str, Candidate]:
        made = [Candidate(step=1, index=index, opening=number) for index in range(count)]
        return {candidate.key: candidate for candidate in made}

    assert merge_candidates(opening(0, before), opening(1, after)) == opening(1, after)
    reopened = merge_candidates(opening(0, before), opening(3, after))
    next_step = {"2/0": Candidate(step=2, index=0)}
    assert merge_candidates(reopened, next_step) == next_step
