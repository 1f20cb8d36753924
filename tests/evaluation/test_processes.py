"""The life of the processes: candidates that hang, crash and leave things behind, spares, a dying harness."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from htam_agent.errors import InfrastructureError, TaskError, WorkerError
from htam_agent.evaluation.bench import Bench, Limits, evaluate_files
from htam_agent.evaluation.judge import PROTOCOLS, MachineFault
from htam_agent.task import Task
from htam_agent.verdict import CompileResult, RunResult
from tests.evaluation.samples import KERNEL, NAMED_FAILURES, TASK, WRONG, candidate

Judge = Callable[..., RunResult]


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


class Doomed(Bench):
    """Its reference is ended by `number` between a build and its run."""

    number = signal.SIGSEGV

    def compile(self, source: Path) -> CompileResult:
        compiled = super().compile(source)
        os.kill(self.processes[1], self.number)
        time.sleep(0.2)
        return compiled


class Full(Bench):
    """The disk takes no file of the first candidate."""

    def compile(self, source: Path) -> CompileResult:
        if source.name == "0.py":
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().compile(source)


class Unsure(Bench):
    """The task fails beside the first candidate."""

    def run(self, compiled: CompileResult, *, timing: bool = True) -> RunResult:
        if "# 0" in (Path(compiled.folder) / "candidate.py").read_text():
            raise TaskError("forward fails on these inputs.", "Mend it.", "task-forward")
        return super().run(compiled, timing=timing)


@pytest.mark.parametrize(
    ("kind", "verdicts", "reason"),
    [
        (Doomed, ["quarantined", "quarantined"], "the harness failed"),
        (Full, ["quarantined", "correct"], "No space left"),
        (Unsure, ["quarantined", "correct"], "the task failed beside it: forward fails"),
    ],
)
def test_what_fails_under_one_file_ends_no_other(
    two_kernels: tuple[Task, list[Path]], tmp_path: Path, kind: type[Bench], verdicts: list[str], reason: str
) -> None:
    task, kernels = two_kernels

    def new() -> Bench:
        return kind(task, backend="cpp", folder=tmp_path / "run", limits=Limits(run_seconds=20))

    results = [result for _, result in evaluate_files(new, kernels, timing=False)]
    assert [result.verdict for result in results] == verdicts
    assert reason in results[0].reason
    assert set(results[0].protocols.values()) == {"quarantined"}
    assert [result.infrastructure for result in results] == [verdict == "quarantined" for verdict in verdicts]


def test_a_reference_killed_for_memory_is_the_machines_fault(
    two_kernels: tuple[Task, list[Path]], tmp_path: Path
) -> None:
    task, kernels = two_kernels

    class Killed(Doomed):
        number = signal.SIGKILL

    def new() -> Bench:
        return Killed(task, backend="cpp", folder=tmp_path / "run", limits=Limits(run_seconds=20))

    results = evaluate_files(new, kernels, timing=False)
    first = next(results)[1]
    assert first.verdict == "quarantined", "it may be this file's doing"
    assert "the machine failed beside it" in first.reason
    with pytest.raises(MachineFault, match="reference"):
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
