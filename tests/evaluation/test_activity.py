"""What other processes do, seen from outside."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.evaluation.activity import longest_wait, not_watched, processor_ms, threads_ms, works_on

SPIN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n"
SAY = "print('done', flush=True); input()\n"
IN_THREAD = (
    "import threading, time\n"
    "def spin():\n"
    "    end = time.thread_time() + 0.1\n"
    "    while time.thread_time() < end: pass\n"
    "thread = threading.Thread(target=spin); thread.start(); thread.join()\n"
)


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("program", [SPIN.format(seconds=0.1), IN_THREAD], ids=["main thread", "a thread that ended"])
def test_the_time_of_all_threads_is_counted(program: str) -> None:
    with running(program + SAY) as process:
        assert said(process) == "done"
        assert processor_ms(process.pid) >= 99.0


def test_an_idle_process_is_idle_and_takes_no_time() -> None:
    with running(SAY) as process:
        said(process)
        time.sleep(0.02)
        before = processor_ms(process.pid)
        time.sleep(0.05)
        assert processor_ms(process.pid) - before < 1.0
        assert works_on(process.pid) == ""
        assert list(threads_ms(process.pid)) == [process.pid]


def test_a_child_that_is_forked_after_the_first_look_is_counted() -> None:
    child = SPIN.format(seconds=0.1)
    program = f"import os\nprint('first', flush=True); input()\nif os.fork() == 0:\n  exec({child!r})\n  {SAY}"
    program += "else: input()\n"
    with running(program) as process:
        assert said(process) == "first"
        before = processor_ms(process.pid)  # which knows of no child
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        assert said(process) == "done"
        assert processor_ms(process.pid) - before >= 99.0
        assert len(threads_ms(process.pid)) == 2


MILLISECONDS = st.floats(0.0, 1e4)
THREADS = st.dictionaries(st.integers(1, 9), st.tuples(MILLISECONDS, MILLISECONDS))


@given(before=THREADS, more=THREADS, wall=MILLISECONDS, own=MILLISECONDS)
def test_no_wait_excuses_what_the_busiest_thread_ran(
    before: dict[int, tuple[float, float]], more: dict[int, tuple[float, float]], wall: float, own: float
) -> None:
    start = {thread: before.get(thread, (0.0, 0.0)) for thread in more}
    after = {thread: (start[thread][0] + ran, start[thread][1] + waited) for thread, (ran, waited) in more.items()}
    wait = longest_wait(before, after, wall, own)
    slack = 1e-6
    assert 0.0 <= wait <= own + max([0.0, *(waited for _, waited in more.values())]) + slack
    assert all(wait <= max(0.0, wall - ran) + slack for ran, _ in more.values())


def test_a_thread_that_waits_idly_excuses_nothing_of_another_that_computes() -> None:
    before = {1: (0.0, 0.0), 2: (0.0, 0.0)}
    assert longest_wait(before, {1: (100.0, 8.0), 2: (1.0, 60.0)}, 110.0) == 10.0


def test_a_process_that_works_on_is_noticed() -> None:
    with running("print('done', flush=True)\nwhile True: pass\n") as process:
        said(process)
        looks = (works_on(process.pid) for _ in range(20))  # on a busy machine it may get no processor in some of them
        assert "went on after its calls had returned" in next(filter(None, looks), "")


def test_a_process_that_is_gone_has_taken_nothing() -> None:
    with running("pass") as process:
        process.wait()
        assert processor_ms(process.pid) == 0.0
        assert threads_ms(process.pid) == {}


def test_a_kernel_that_shows_no_children_is_not_taken_for_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> str:
        raise FileNotFoundError(2, "No such file", path)

    not_watched.cache_clear()
    assert not_watched() == ""
    not_watched.cache_clear()
    monkeypatch.setattr("htam_agent.evaluation.activity._read", refuse)
    try:
        assert "cannot be read" in not_watched()
    finally:
        not_watched.cache_clear()
