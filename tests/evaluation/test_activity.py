"""What other processes do, seen from outside."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from htam_agent.evaluation.activity import not_watched, processor_ms, waits_ms, works_on

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
        assert list(waits_ms(process.pid)) == [process.pid]


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
        assert len(waits_ms(process.pid)) == 2


def test_a_process_that_works_on_is_noticed() -> None:
    with running("print('done', flush=True)\nwhile True: pass\n") as process:
        said(process)
        assert "went on after its calls had returned" in works_on(process.pid)


def test_a_process_that_is_gone_has_taken_nothing() -> None:
    with running("pass") as process:
        process.wait()
        assert processor_ms(process.pid) == 0.0
        assert waits_ms(process.pid) == {}


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
