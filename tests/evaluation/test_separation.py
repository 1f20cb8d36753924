"""What hostile candidates try against the harness, the machine and each other, and what they meet."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from htam_agent.evaluation.bench import Bench
from htam_agent.evaluation.confinement import LAYERS, confinement_report
from htam_agent.evaluation.system_calls import refused_numbers
from htam_agent.verdict import RunResult
from tests.evaluation.samples import FORWARD, candidate

Judge = Callable[..., RunResult]


def before(text: str) -> str:
    """The right candidate, which does something else first."""
    return candidate(f"{textwrap.dedent(text)}\n{FORWARD}")


def test_left_over_processes_are_named_and_killed(judge: Judge, bench: Bench) -> None:
    result = judge(candidate("import time\nif os.fork() == 0:\n    time.sleep(500)\n" + FORWARD))
    assert any(check.name == "left-over-processes" for check in result.checks)
    zygote, reference = bench.processes
    children = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
    assert sorted(map(int, children)) == sorted([reference, *bench._opened().spares.pids])


def test_prints_go_to_a_short_log_and_never_to_stdout(
    judge: Judge, bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    result = judge(candidate("print('chatter' * 20000, flush=True)\n" + FORWARD))
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


def test_the_room_of_a_candidate_is_limited_and_gone_afterwards(judge: Judge, bench: Bench) -> None:
    """Many files, each within the limit for one."""
    fill = """
    for number in range(40):
        open(os.environ['HOME'] + f'/part-{number}', 'wb').write(bytes(7 << 20))
    """
    result = judge(before(fill))
    assert result.verdict == "failed"
    assert "No space left" in result.reason
    assert not list(bench.folder.glob("cells/*/scratch/part-*"))


SHARED = {
    "a file in /dev/shm": "open('/dev/shm/htam-left', 'w')",
    "a file in /tmp": "open('/tmp/htam-left', 'w')",
    "shared memory by name": "from multiprocessing import shared_memory\nshared_memory.SharedMemory('left', True, 64)",
    "System V shared memory of others": (
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.shmget(0x48544d, 64, 0o600) >= 0, os.strerror(ctypes.get_errno())"
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_nothing_is_left_for_the_next_candidate(judge: Judge, name: str) -> None:
    assert judge(candidate(SHARED[name] + "\n" + FORWARD)).verdict == "failed"
    for path in ("/dev/shm/htam-left", "/tmp/htam-left", "/dev/shm/left"):
        assert not Path(path).exists()


SYSTEM_CALLS = {
    # name: (x86_64 and aarch64 number, arguments); each is refused to an unprivileged process by the filter alone
    "unshare of a user namespace": ("unshare", "0x10000000, 0, 0, 0"),
    "a BPF program": ("bpf", "5, 0, 0, 0"),
    "performance counters": ("perf_event_open", "0, 0, -1, -1"),
    "io_uring": ("io_uring_setup", "4, 0, 0, 0"),
    "user faults": ("userfaultfd", "1, 0, 0, 0"),
    "memory of another process": ("process_vm_readv", "1, 0, 0, 0"),
    "descriptors of another process": ("pidfd_getfd", "0, 0, 0, 0"),
    "keys": ("keyctl", "0, 0, 0, 0"),
    "tracing": ("ptrace", "0, 0, 0, 0"),
}


@pytest.mark.parametrize("name", SYSTEM_CALLS)
def test_system_calls_that_no_kernel_needs_are_refused(judge: Judge, name: str) -> None:
    call, arguments = SYSTEM_CALLS[name]
    number = refused_numbers(platform.machine())[call]
    text = f"""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall({number}, {arguments})
    assert (result, ctypes.get_errno()) != (-1, 1), 'EPERM as it should be'
    """
    result = judge(before(text))
    assert "EPERM as it should be" in result.reason


def test_a_namespace_by_clone_is_refused_and_threads_are_not(judge: Judge) -> None:
    text = """
    import threading
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    libc = ctypes.CDLL(None, use_errno=True)
    number = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]
    pid = libc.syscall(number, 0x10000000 | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    assert pid != -1 or ctypes.get_errno() != 1, 'EPERM as it should be'
    """
    assert "EPERM as it should be" in judge(before(text)).reason


def test_a_candidate_sees_its_own_processes_alone(judge: Judge) -> None:
    text = "raise ValueError(' '.join(sorted(n for n in os.listdir('/proc') if n.isdigit())) + f' uid {os.getuid()}')"
    result = judge(candidate(text))
    if "own-processes" in result.confinement:
        assert "PermissionError" in result.reason or "ValueError: 1 2 " in result.reason
    assert "uid 0" not in result.reason


def test_a_fork_bomb_ends_with_its_verdict(judge: Judge, bench: Bench) -> None:
    bomb = """
    import time
    for _ in range(10000):
        try:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        except OSError as error:
            raise RuntimeError(f'no more processes: {error}')
    """
    result = judge(before(bomb))
    assert result.verdict == "failed"
    assert "no more processes" in result.reason
    assert judge(candidate()).verdict == "correct"


def test_descriptors_that_are_closed_under_us_are_a_failure(judge: Judge) -> None:
    result = judge(candidate("os.closerange(0, 1024)\n" + FORWARD))
    assert result.verdict == "failed"
    assert result.stage == "run"
    assert judge(candidate()).verdict == "correct"
