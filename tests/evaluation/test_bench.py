"""Verdicts of real candidates in real processes: the right one, wrong ones, and every way of failing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from htam_agent.errors import TaskError
from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.evaluation.timing import device_lock
from htam_agent.task import Task
from htam_agent.verdict import RunResult, Times
from tests.evaluation.samples import FORWARD, KERNEL, NAMED_FAILURES, TASK, WRONG, candidate

Judge = Callable[..., RunResult]


def test_a_right_kernel_is_correct_and_timed(judge: Judge, bench: Bench) -> None:
    result = judge(candidate(), timing=True)
    assert result.verdict == "correct", result
    assert result.protocols == dict.fromkeys(("strict", "verified", "verified-fair"), "correct")
    assert result.stage == "time"
    assert result.interval is not None
    assert result.speedup.best is not None
    assert result.interval.low <= result.speedup.best <= result.interval.high
    assert result.faster == (result.interval.low > 1.0)
    assert result.times_ms.candidate is not None
    assert result.times_ms.candidate > 0
    assert result.speedup.compile is None
    assert "compile" in result.speedup.reason
    assert [launch.kernel for launch in result.launches] == ["kernel"]
    assert {check.name for check in result.checks} >= {"policy", "trials", "timed-outputs", "clock", "task-not-weak"}
    assert all(check.passed for check in result.checks)
    file = max(bench.folder.glob("candidates/*/candidate.py"), key=lambda path: path.stat().st_mtime_ns)
    assert bench.profile(bench.compile(file), result).diagnosis


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_wrong(judge: Judge, name: str) -> None:
    result = judge(WRONG[name])
    assert result.verdict == "wrong", result
    assert result.stage == "verify"
    assert result.reason
    assert not result.faster
    assert result.speedup.best is None
    assert result.times_ms.candidate is None


@pytest.mark.parametrize("name", NAMED_FAILURES)
def test_a_failure_has_a_stage_and_a_reason(judge: Judge, name: str) -> None:
    text, stage, reason = NAMED_FAILURES[name]
    result = judge(text)
    assert result.verdict == ("wrong" if stage == "verify" else "failed"), result
    assert result.stage == stage
    assert reason in result.reason


def test_other_names_of_parameters_are_correct_and_said(judge: Judge) -> None:
    renamed = candidate().replace("self.weight", "self.gain")
    result = judge(renamed)
    assert result.verdict == "correct", result
    (check,) = [check for check in result.checks if check.name == "state-dict"]
    assert not check.passed
    assert "gain" in check.detail
    assert "weight" in check.detail
    assert next(check for check in judge(candidate()).checks if check.name == "state-dict").passed


def test_a_failure_leaves_the_next_candidate_alone(judge: Judge) -> None:
    assert judge(NAMED_FAILURES["crash by signal"][0]).verdict == "failed"
    assert judge(candidate()).verdict == "correct"


def test_what_is_right_only_sometimes_is_found_while_it_is_timed(judge: Judge) -> None:
    drifting = candidate(
        f"""
        self.calls += 1
        z = {FORWARD.removeprefix("return ")}
        if self.calls > 40:
            z[0, 0] = 12.5
        return z
        """,
        init="self.calls = 0",
    )
    result = judge(drifting, timing=True)
    assert result.verdict == "wrong"
    assert result.stage == "time"
    assert "timed call" in result.reason


SLOW_MS = 2.0
SLOW_KERNEL = "#include <time.h>\n" + KERNEL.replace(
    "for (long row",
    f"""timespec begin, now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  while ((now.tv_sec - begin.tv_sec) * 1e3 + (now.tv_nsec - begin.tv_nsec) * 1e-6 < {SLOW_MS});
  for (long row""",
    1,
)
"""SLOW_MS of its thread's time in the kernel itself, however fast or busy the processor is: a shorter time is a
lie, and a second measurement to compare with is not needed."""


def test_clocks_of_python_that_run_slow_change_no_time(judge: Judge) -> None:
    names = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "process_time")
    forged = candidate(
        kernel=SLOW_KERNEL,
        top=f"""
        import time
        for name in {names}:
            setattr(time, name, lambda real=getattr(time, name): type(real())(real() / 1000))
        """,
    )
    result = judge(forged, timing=True)
    assert result.verdict == "correct", result
    assert result.times_ms.candidate is not None
    assert result.times_ms.candidate > 0.99 * SLOW_MS


FORGED = {
    "nothing": "[1e-4] * count",
    "half of it": "[0.5 * real] * count",
    "a fifth less": "[0.8 * real] * count",
    "one long call": "[1e-4] * (count - 1) + [real * count]",
    "a long first call": "[1e-4] * count",
    "not a number": "[float('nan')] * count",
    "fewer calls": "[real]",
    "shorter in short blocks": "[real if count * real > 90 else 0.5 * real] * count",
}


@pytest.mark.parametrize("name", FORGED)
def test_a_stopwatch_that_lies_gains_nothing(judge: Judge, name: str) -> None:
    forged = candidate(
        kernel=SLOW_KERNEL,
        top=f"""
        import sys
        from time import thread_time as clock  # a busy machine is no part of it
        def fake(self, calls, count, alone=False, flushes=1):
            begin = clock() * 1e3
            self.kept = [None] * len(calls)
            for number in range(count):
                self.kept[number % len(calls)] = calls[number % len(calls)]()
            real = (clock() * 1e3 - begin) / count
            self.first_ms = 1e6 if {name!r} == 'a long first call' else 0.0
            return {FORGED[name]}, self.kept
        sys.modules['htam_agent.evaluation.stopwatch'].Stopwatch.block = fake
        """,
    )
    result = judge(forged, timing=True)
    assert not result.faster
    if result.verdict == "correct":  # a machine that is busy with other work: the outer clock's time was taken
        assert result.times_ms.candidate is not None
        assert result.times_ms.candidate > 0.9 * SLOW_MS, [
            check.detail for check in result.checks if check.name == "clock"
        ]
        return
    assert result.verdict == "quarantined", result
    if result.stage != "policy" and "number" not in name and "fewer" not in name and "one" not in name:
        (check,) = [check for check in result.checks if check.name == "clock"]
        assert "outer" in check.detail
        assert "inner" in check.detail or "left out" in check.detail


@pytest.mark.slow
def test_a_loaded_machine_quarantines_nobody(judge: Judge) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        results = [judge(candidate(), timing=True) for _ in range(4)]
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert [result.verdict for result in results] == ["correct"] * 4, results


def test_waiting_for_the_device_is_not_charged_to_the_candidate(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "kernel.py").write_text(candidate())
    limits = Limits(run_seconds=3, load_seconds=3, total_seconds=4)
    with Bench(Task.parse(str(tmp_path / "task.py")), backend="cpp", folder=tmp_path / "run", limits=limits) as bench:
        bench.baselines()
        held = threading.Event()

        def hold() -> None:
            with device_lock("cpu"):
                held.set()
                time.sleep(5)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        result = bench.run(bench.compile(tmp_path / "kernel.py"))
        holder.join()
    assert result.verdict == "correct", result
    assert result.seconds > 4


BROKEN = {
    "does not parse": ("class ModelNew(", "load", "parse"),
    "without ModelNew": ("CPP_SRC = 'int x;'\nclass Other: pass", "load", "ModelNew"),
    "without a kernel": ("class ModelNew:\n    def forward(self, x): return x", "policy", "no kernel"),
    "runs the reference": ("CPP_SRC = 'int x;'\nclass Model: pass\nclass ModelNew(Model): pass", "policy", "forward"),
    "does not compile": (candidate(kernel="int f( {"), "compile", "compiler"),
    "for another backend": (candidate().replace("CPP_SRC", "CUDA_SRC"), "compile", "CPP_SRC"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_built(judge: Judge, name: str) -> None:
    text, stage, reason = BROKEN[name]
    result = judge(text)
    assert result.verdict == "failed"
    assert result.stage == stage, result
    assert reason in result.reason


def test_a_missing_file_is_a_failed_build(bench: Bench, tmp_path: Path) -> None:
    compiled = bench.compile(tmp_path / "nowhere.py")
    assert not compiled.ok
    assert "cannot be read" in compiled.reason
    assert bench.run(compiled).verdict == "failed"


def test_compiler_output_is_kept(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(candidate(kernel="int f() { return undeclared_name; }"))
    assert "undeclared_name" in bench.compile(file).log


def test_a_source_cannot_read_files_through_the_compiler(bench: Bench, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("error: the secret")
    file = tmp_path / "kernel.py"
    file.write_text(candidate(kernel=f'#include "{secret}"\n'))
    compiled = bench.compile(file)
    assert not compiled.ok
    assert "the secret" not in compiled.log


def test_baselines_are_measured_once_and_can_be_taken_over(bench: Bench) -> None:
    times = bench.baselines()
    assert times.eager is not None
    assert times.best == times.eager
    assert times.floor is not None
    assert bench.baselines() is times
    assert "TF32" in bench.baseline_reason
    other = Times(eager=1.0, best=1.0)
    bench.use_baselines(other)
    assert bench.baselines() is other
    bench.use_baselines(times)


def test_an_unusable_task_is_the_users_fault(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK.replace("torch.randn(32, 100)]", "torch.randn(32, 77)]"))
    with pytest.raises(TaskError, match="forward"):
        Bench(Task.parse(str(tmp_path / "task.py")), backend="cpp", folder=tmp_path / "run").open()
