"""Spare workers: ready before their candidate, used once, replaced when dead, gone with the bench."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from htam_agent.errors import SettingsError, WorkerError
from htam_agent.evaluation.bench import Bench
from htam_agent.evaluation.channel import Channel
from htam_agent.evaluation.commands import Report
from htam_agent.evaluation.confinement import LAYERS
from htam_agent.evaluation.session import confinement_off
from htam_agent.evaluation.spares import prepare_spare
from htam_agent.evaluation.zygote import _await_end
from htam_agent.verdict import RunResult
from tests.evaluation.samples import FORWARD, candidate

Judge = Callable[..., RunResult]


def waiting(bench: Bench) -> list[int]:
    return bench._opened().spares.pids


def kill_waiting(bench: Bench) -> None:
    """Ends the spares, as a system short of memory would."""
    for pid in waiting(bench):
        os.kill(pid, 9)
        deadline = time.monotonic() + 30
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_spare_is_used_once_and_replaced(bench: Bench, judge: Judge) -> None:
    judge(candidate())
    before = waiting(bench)
    assert before
    assert judge(candidate()).verdict == "correct"
    after = waiting(bench)
    assert len(after) == len(before)
    assert not set(before) & set(after)
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)


def test_the_next_spare_starts_beside_a_candidate_and_is_ready_before_anything_is_timed(
    bench: Bench, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge(candidate())
    spares = bench._opened().spares
    settle, seen = spares.settle, []

    def watched() -> None:
        starting = [spare.answer is None for spare in spares._waiting]
        settle()
        seen.append((starting, [spare.answer is None for spare in spares._waiting]))

    monkeypatch.setattr(spares, "settle", watched)
    taken = waiting(bench)
    result = judge(candidate(), timing=True)
    assert result.verdict == "correct", result
    assert "wait for quiet" in result.stages
    assert seen
    assert all(len(before) == 1 and after == [False] for before, after in seen)
    assert not set(taken) & set(waiting(bench))


def test_a_ready_spare_that_dies_is_replaced(bench: Bench, judge: Judge) -> None:
    judge(candidate())
    bench._opened().quiet()
    kill_waiting(bench)
    assert judge(candidate()).verdict == "correct"


def test_a_dead_spare_is_no_verdict(bench: Bench, judge: Judge) -> None:
    judge(candidate())
    kill_waiting(bench)
    assert judge(candidate()).verdict == "correct"


def test_a_spare_that_was_set_up_for_other_limits_is_not_used(
    bench: Bench, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge(candidate())
    session = bench._opened()
    limits = session.limits.model_copy(update={"output_bytes": 4096})
    monkeypatch.setattr(bench, "_session", replace(session, limits=limits))
    writing = candidate("open(os.environ['HOME'] + '/big', 'wb').write(bytes(1 << 20))\n" + FORWARD)
    assert "File too large" in judge(writing).reason
    monkeypatch.setattr(bench, "_session", session)
    assert judge(writing).verdict == "correct"


def test_a_layer_that_is_turned_off_is_off_in_the_next_worker(
    bench: Bench, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge(candidate()).confinement == list(LAYERS)
    monkeypatch.setenv("HTAM_CONFINEMENT_OFF", "own-host-name, own-ipc")
    result = judge(candidate())
    assert result.verdict == "correct"
    assert {line.partition(":")[0] for line in result.confinement_missing} == {"own-host-name", "own-ipc"}
    assert all("HTAM_CONFINEMENT_OFF" in line for line in result.confinement_missing)


def test_an_unknown_layer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTAM_CONFINEMENT_OFF", "own-file")
    with pytest.raises(SettingsError, match="own-file"):
        confinement_off()


def test_cells_and_processes_do_not_pile_up(bench: Bench, judge: Judge) -> None:
    """Ten candidates leave behind what one does: no cell, no process, no descriptor."""
    crash = candidate("os.abort()")
    texts = [candidate(), crash] * 5
    judge(candidate())
    session = bench._opened()
    zygote = session.harness.pid
    before = (len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{zygote}/fd")))
    verdicts = [judge(text).verdict for text in texts]
    assert verdicts == ["correct", "failed"] * 5
    assert len(list((bench.folder / "cells").iterdir())) == len(waiting(bench))
    assert (len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{zygote}/fd"))) == before
    deadline = time.monotonic() + 5
    expected = {bench.processes[1], *waiting(bench)}
    while {int(pid) for pid in Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()} != expected:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_spare_that_cannot_be_killed_leaves_no_cell(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = prepare_spare(bench._opened())
    kill = spare.worker.kill

    def die() -> None:
        kill()
        raise WorkerError("The evaluation's parent process does not answer.", "Run it again.")

    monkeypatch.setattr(spare.worker, "kill", die)
    with pytest.raises(WorkerError):
        spare.end()
    assert not spare.cell.exists()


def test_a_process_that_does_not_end_is_waited_for_until_the_deadline_only() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        begin = time.monotonic()
        assert not _await_end(child.pid, begin + 0.1)
        assert time.monotonic() - begin < 5.0
        child.kill()
        assert _await_end(child.pid, time.monotonic() + 10.0)


def test_an_end_is_forgotten_when_its_number_is_given_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = bench._opened().harness
    first = harness.spawn("candidate", None)
    assert harness.kill(first.pid) is not None
    assert not first.alive()
    ours, theirs = Channel.pair()
    with contextlib.closing(ours), contextlib.closing(Channel(theirs)) as zygote, monkeypatch.context() as patch:
        patch.setattr(harness, "_control", ours)
        zygote.send(Report(event="started", pid=first.pid))
        harness._read(5.0)
        assert first.alive(), "another process has its number now"
