"""Memory that is free is the least of what the machine and the control groups leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from htam_agent.evaluation.free_memory import available_bytes

MEMINFO = "MemTotal: 4000 kB\nMemFree: 10 kB\nMemAvailable: 2000 kB\n"


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2, V1 = "sys/fs/cgroup/", "sys/fs/cgroup/memory/"


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        ("", {}, 2000 * 1024),
        ("0::/a/b\n", {V2 + "a/b/memory.max": "max\n", V2 + "a/b/memory.current": "5\n"}, 2000 * 1024),
        ("0::/a/b\n", {V2 + "a/b/memory.max": "9000\n", V2 + "a/b/memory.current": "5000\n"}, 4000),
        ("0::/a/b\n", {V2 + "a/memory.max": "9000\n", V2 + "a/memory.current": "8000\n"}, 1000),
        ("0::/a\n", {V2 + "memory.max": "10\n", V2 + "memory.current": "30\n"}, 0),
        (
            "0::/a\n",
            {
                V2 + "a/memory.max": "9000",
                V2 + "a/memory.current": "9000",
                V2 + "a/memory.stat": "anon 1\ninactive_file 600\nactive_file 60\n",
            },
            660,
        ),
        (
            "7:pids:/\n4:cpu,memory:/job\n0::/\n",
            {V1 + "job/memory.limit_in_bytes": "700\n", V1 + "job/memory.usage_in_bytes": "200\n"},
            500,
        ),
        (
            "4:memory:/of/the/host\n",
            {V1 + "memory.limit_in_bytes": "700\n", V1 + "memory.usage_in_bytes": "100\n"},
            600,
        ),
    ],
)
def test_the_tightest_limit_counts(tmp_path: Path, groups: str, files: dict[str, str], free: int) -> None:
    assert available_bytes(machine(tmp_path, groups, files)) == free


def test_this_machine_has_some() -> None:
    assert available_bytes() > 1 << 20
