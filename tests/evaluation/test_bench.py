"""Verdicts of real candidates in real processes: the right one, wrong ones, and every way of failing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from htam_agent.errors import InfrastructureError, TaskError, WorkerError
from htam_agent.evaluation.bench import Bench, Limits, evaluate_files
from htam_agent.evaluation.confinement import LAYERS, confinement_report
from htam_agent.evaluation.judge import PROTOCOLS
from htam_agent.evaluation.timing import device_lock
from htam_agent.task import Task
from htam_agent.verdict import CompileResult, RunResult, Times
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
    (file,) = bench.folder.glob("candidates/*/candidate.py")
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


SLOW_KERNEL = KERNEL.replace(
    "for (long row", "for (volatile long spin = 0; spin < 2000000; ++spin) {}\n  for (long row", 1
)
"""Some 2 ms in the kernel itself."""


def test_clocks_of_python_that_run_slow_change_no_time(judge: Judge) -> None:
    honest = judge(candidate(kernel=SLOW_KERNEL), timing=True).times_ms.candidate
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
    assert honest is not None
    assert result.times_ms.candidate is not None
    assert result.times_ms.candidate > 0.7 * honest


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
        import sys, time
        def fake(self, calls, count, alone=False, cold=True):
            begin = time.perf_counter() * 1e3
            self.kept = [None] * len(calls)
            for number in range(count):
                self.kept[number % len(calls)] = calls[number % len(calls)]()
            real = (time.perf_counter() * 1e3 - begin) / count
            self.first_ms = 1e6 if {name!r} == 'a long first call' else 0.0
            return {FORGED[name]}, self.kept
        sys.modules['htam_agent.evaluation.stopwatch'].Stopwatch.block = fake
        """,
    )
    result = judge(forged, timing=True)
    assert result.verdict == "quarantined", result
    assert result.stage == "time"
    assert not result.faster
    if "number" not in name and "fewer" not in name:
        (check,) = [check for check in result.checks if check.name == "clock"]
        assert "outer" in check.detail
        assert "inner" in check.detail


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


def test_left_over_processes_are_named_and_killed(judge: Judge, bench: Bench) -> None:
    result = judge(candidate("import time\nif os.fork() == 0:\n    time.sleep(500)\n" + FORWARD))
    assert any(check.name == "left-over-processes" for check in result.checks)
    zygote, reference = bench.processes
    children = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
    assert sorted(map(int, children)) == sorted([reference, *bench._opened().spares.pids])


def test_prints_go_to_a_short_log_and_never_to_stdout(
    judge: Judge, bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    result = judge(candidate("print('chatter' * 100000, flush=True)\n" + FORWARD))
    assert result.verdict == "correct"
    assert capfd.readouterr().out == ""
    logs = list(bench.folder.glob("logs/*.run.log"))
    assert logs
    assert max(log.stat().st_size for log in logs) < 100_000


LINKS = {
    "in its own folder": "here = os.path.dirname(os.path.abspath(__file__))",
    "in its scratch folder": "here = os.environ['HOME']",
    "in the folder of logs": "here = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'logs')",
}


@pytest.mark.parametrize("confined", [True, False])
@pytest.mark.parametrize("name", LINKS)
def test_links_that_a_candidate_planted_are_never_followed(
    judge: Judge, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, confined: bool
) -> None:
    """With landlock it cannot plant them; without it they are replaced, not followed."""
    if not confined:
        monkeypatch.setenv("HTAM_CONFINEMENT_OFF", "landlock")
    victim = tmp_path / "victim"
    victim.write_text("x" * 70_000 + "THE-SECRET")
    top = f"""
{LINKS[name]}
names = [n for n in os.listdir(here) if os.path.isfile(os.path.join(here, n))] if os.access(here, os.R_OK) else []
for name in [*names, "run.log", "build.log", "candidate.py"]:
    path = os.path.join(here, name)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        os.symlink({str(victim)!r}, path)
    except OSError:
        pass
os._exit(3)
"""
    text = candidate().replace("LAUNCHES = []", "LAUNCHES = []\n" + top)
    for _ in range(2):
        result = judge(text)
        assert result.verdict == "failed"
        assert "THE-SECRET" not in result.model_dump_json()
        assert victim.read_text() == "x" * 70_000 + "THE-SECRET"
    monkeypatch.delenv("HTAM_CONFINEMENT_OFF", raising=False)
    assert judge(candidate()).verdict == "correct"


def test_a_candidate_cannot_change_its_own_file_or_binary(judge: Judge) -> None:
    result = judge(candidate(top="open(__file__, 'a').write('# another')"))
    assert result.verdict == "failed"
    assert "PermissionError" in result.reason
    result = judge(candidate("open(os.path.join(os.environ['HTAM_KERNEL_DIR'], NAME), 'ab').write(b'x')\n" + FORWARD))
    assert result.verdict == "failed"


def test_a_file_that_fills_the_disk_is_stopped(judge: Judge) -> None:
    result = judge(candidate("open(os.environ['HOME'] + '/big', 'wb').write(bytes(64 << 20))\n" + FORWARD))
    assert result.verdict == "failed"
    assert "File too large" in result.reason


def test_answers_that_are_no_messages_are_a_failure(judge: Judge) -> None:
    """The candidate writes into every descriptor that it finds: into its own channel too."""
    result = judge(
        candidate(
            """
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, b'\\x10\\0\\0\\0' + b'{"verdict": true}')
                except OSError:
                    pass
            """
            + "\n"
            + FORWARD
        )
    )
    assert result.verdict == "failed"
    assert "nonsense" in result.reason


def test_a_forged_answer_proves_nothing(judge: Judge) -> None:
    forged = candidate(
        """
        import struct
        message = (b'{"ok": true, "outputs": {"kind": "tensor", "index": 0}, "tensors": '
                   b'[{"shape": [32, 100], "stride": [100, 1], "dtype": "float32", "offset": 0}]}')
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, struct.pack('<I', len(message)) + message)
            except OSError:
                pass
        """
    )
    assert judge(forged).verdict in ("wrong", "failed")


CONFINED = {
    "network": "import socket\nsocket.create_connection(('127.0.0.1', 9), timeout=2)",
    "a file outside": "open('/tmp/htam-escaped', 'w')",
    "another user's file": "open('/etc/passwd').read()",
    "the home folder": "os.listdir('/root' if os.path.isdir('/root') else '/home')",
    "memory of the parent": "open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "maps of the parent": "open(f'/proc/{os.getppid()}/maps').read()",
    "a signal to the parent": "os.kill(os.getppid(), 18)",
    "ptrace of the parent": (
        "libc = ctypes.CDLL(None, use_errno=True)\nassert libc.ptrace(16, os.getppid(), 0, 0) == 0, 'ptrace refused'"
    ),
}


@pytest.mark.parametrize("name", CONFINED)
def test_confinement_holds(judge: Judge, name: str) -> None:
    result = judge(candidate(CONFINED[name] + "\n" + FORWARD))
    assert result.confinement == list(LAYERS), result.confinement_missing
    assert result.verdict == "failed", f"{name} was possible"
    assert result.stage == "run"


def test_confinement_is_reported_for_the_doctor() -> None:
    active, missing = confinement_report()
    assert set(active) | {line.split(":")[0] for line in missing} == set(LAYERS)


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


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A bench with short limits, opened under a secret variable; its last test kills it."""
    folder = tmp_path_factory.mktemp("doomed")
    (folder / "task.py").write_text(TASK)
    task = Task.parse(str(folder / "task.py"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTAM_API_KEY", "top-secret-key")
        with Bench(
            task, backend="cpp", folder=folder / "run", limits=Limits(run_seconds=3), hang_memory=False
        ) as bench:
            yield bench


def test_the_environment_is_empty(doomed: Bench, tmp_path: Path) -> None:
    file = tmp_path / "peek.py"
    file.write_text(candidate("raise ValueError(open('/proc/self/environ').read() + repr(dict(os.environ)))"))
    result = doomed.run(doomed.compile(file), timing=False)
    assert "PATH" in result.reason
    assert "top-secret" not in result.model_dump_json()


def test_a_hang_is_killed_with_its_children(doomed: Bench, tmp_path: Path) -> None:
    file = tmp_path / "hang.py"
    file.write_text(
        candidate(
            """
            import time
            for _ in range(3):
                if os.fork() == 0:
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                    time.sleep(1000)
            time.sleep(1000)
            """
        )
    )
    begin = time.monotonic()
    result = doomed.run(doomed.compile(file), timing=False)
    assert time.monotonic() - begin < 20
    assert result.verdict == "failed"
    assert result.stage == "run"
    assert "hang" in result.reason
    (left,) = [check for check in result.checks if check.name == "left-over-processes"]
    assert not left.passed
    assert left.detail.startswith("3 ")


def test_a_dead_reference_is_the_machines_fault(doomed: Bench, tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(candidate())
    compiled = doomed.compile(file)
    zygote, reference = doomed.processes
    os.kill(reference, 9)
    with pytest.raises(WorkerError, match="reference"):
        doomed.run(compiled, timing=False)
    doomed.close()
    assert not Path(f"/proc/{zygote}").exists()
    with pytest.raises(InfrastructureError, match="not open"):
        doomed.compile(file)


def test_everything_dies_with_the_main_process(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    script = f"""
import os, sys
from pathlib import Path
from htam_agent.evaluation.bench import Bench
from htam_agent.task import Task
bench = Bench(Task.parse({str(tmp_path / "task.py")!r}), backend="cpp", folder=Path({str(tmp_path / "run")!r}))
bench.open()
assert "torch" not in sys.modules
print(*bench.processes, *bench._opened().spares.pids, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    pids = done.stdout.split()
    assert len(pids) == 3, done.stderr
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_one_bad_file_never_fails_the_others(tmp_path: Path) -> None:
    texts = [candidate(), NAMED_FAILURES["crash by signal"][0], "class ModelNew(", WRONG["zeros"], candidate()]
    (tmp_path / "task.py").write_text(TASK)
    for index, text in enumerate(texts):
        (tmp_path / f"{index}.py").write_text(text)
    kernels = [tmp_path / f"{index}.py" for index in range(len(texts))]
    task = Task.parse(str(tmp_path / "task.py"))
    limits, folder = Limits(run_seconds=20), tmp_path / "evaluations"
    folder.mkdir()

    def new() -> Bench:
        return Bench(task, backend="cpp", limits=limits, folder=folder, protocols=PROTOCOLS)

    results = [result for _, result in evaluate_files(new, kernels, timing=False)]
    assert [result.verdict for result in results] == ["correct", "failed", "failed", "wrong", "correct"]
    assert all(len(result.protocols) == 4 for result in results)
    assert set(results[0].protocols.values()) == {"correct"}


@pytest.fixture
def two_kernels(tmp_path: Path) -> tuple[Task, list[Path]]:
    (tmp_path / "task.py").write_text(TASK)
    for index in range(2):
        (tmp_path / f"{index}.py").write_text(candidate() + f"# {index}\n")
    return Task.parse(str(tmp_path / "task.py")), [tmp_path / f"{index}.py" for index in range(2)]


def test_a_machine_that_sets_up_no_candidate_quarantines_none(
    two_kernels: tuple[Task, list[Path]], tmp_path: Path
) -> None:
    task, kernels = two_kernels

    def new() -> Bench:
        bench = Bench(task, backend="cpp", folder=tmp_path / "run", limits=Limits(run_seconds=20))
        bench.open()
        bench._descriptors[:] = [os.open("/dev/null", os.O_RDONLY)]  # not the buffers that a candidate needs
        return bench

    with pytest.raises(WorkerError, match="could not be set up"):
        list(evaluate_files(new, kernels, timing=False))


def test_a_harness_that_always_dies_quarantines_one_and_then_says_so(
    two_kernels: tuple[Task, list[Path]], tmp_path: Path
) -> None:
    task, kernels = two_kernels

    class Doomed(Bench):
        def compile(self, source: Path) -> CompileResult:
            compiled = super().compile(source)
            os.kill(self.processes[1], 9)
            time.sleep(0.2)
            return compiled

    def new() -> Bench:
        return Doomed(task, backend="cpp", folder=tmp_path / "run", limits=Limits(run_seconds=20))

    results = evaluate_files(new, kernels, timing=False)
    assert next(results)[1].verdict == "quarantined"
    with pytest.raises(WorkerError, match="reference"):
        next(results)


def test_a_build_that_the_machine_prevents_is_no_verdict(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source of its own, so that no cache has it; files of the build may have no byte."""
    file = tmp_path / "kernel.py"
    file.write_text(candidate(kernel=KERNEL + f"// {os.urandom(8).hex()}\n"))
    whole = bench.limits
    session = bench._opened()
    monkeypatch.setattr(bench, "_session", replace(session, limits=whole.model_copy(update={"output_bytes": 16})))
    with pytest.raises(WorkerError):
        bench.compile(file)
    monkeypatch.setattr(bench, "_session", session)
    assert bench.compile(file).ok, "nothing was remembered"


def test_an_unusable_task_is_the_users_fault(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK.replace("torch.randn(32, 100)]", "torch.randn(32, 77)]"))
    with pytest.raises(TaskError, match="forward"):
        Bench(Task.parse(str(tmp_path / "task.py")), backend="cpp", folder=tmp_path / "run").open()
