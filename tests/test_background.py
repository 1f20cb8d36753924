"""The background loop: results, faults and time limits cross over, and nothing is left running."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from htam_agent.background import background_loop, run_in_background


def test_results_and_faults_come_back_from_one_loop_for_all_threads() -> None:
    async def where() -> int:
        return threading.get_ident()

    async def fails() -> int:
        raise KeyError("lost")

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(run_in_background(where()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert found[0] != threading.get_ident()
    with pytest.raises(KeyError, match="lost"):
        run_in_background(fails())


def test_work_that_takes_too_long_is_cancelled() -> None:
    ended = threading.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        run_in_background(slow(), 0.05)
    assert ended.wait(5)
    assert time.monotonic() - begun < 5


def test_it_works_beside_another_running_loop_and_refuses_to_wait_for_itself() -> None:
    async def value() -> int:
        return 7

    async def beside() -> int:
        return run_in_background(value())

    async def inside() -> str:
        work = value()
        try:
            run_in_background(work)
        except RuntimeError as error:
            return str(error)
        finally:
            work.close()
        return ""

    assert asyncio.run(beside()) == 7
    assert background_loop() is background_loop()
    assert "await the work instead" in run_in_background(inside())


def test_what_is_open_at_the_end_of_the_process_is_ended() -> None:
    code = (
        "from htam_agent.background import at_end, run_in_background\n"
        "async def nothing(): pass\n"
        "async def end(): print('ended', flush=True)\n"
        "run_in_background(nothing()); at_end(end)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "ended\n"
    assert ran.stderr == ""
