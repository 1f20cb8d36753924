"""Beginning anew: the seed is there again whatever the folder held, and the old memory is kept."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from htam_agent.errors import StoreError
from htam_agent.memory.resetting import reset_folder
from htam_agent.memory.seeding import load_seed
from htam_agent.memory.store import MemoryStore
from tests.support.memory import experience

NOW = time.struct_time((2026, 6, 1, 12, 0, 0, 0, 152, 0))
KNOWN = "cpp-simd-loops"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A memory with one measured step."""
    with MemoryStore.open(tmp_path / "memory") as store:
        store.add_experience(experience("run:1:0:0", "instruction-throughput", KNOWN))
    return tmp_path / "memory"


def test_the_old_memory_is_kept_beside_the_new_one(folder: Path) -> None:
    report = reset_folder(folder, now=NOW)
    assert report.strategies == len(load_seed().strategies)
    aside = folder.with_name("memory-before-20260601-120000")
    assert report.aside == str(aside)
    with MemoryStore.open(aside) as old, MemoryStore.open(folder) as new:
        assert len(old.experiences) == 1
        assert len(new.experiences) == 0


@pytest.mark.parametrize("content", [b"this is no database" * 100, b""])
def test_a_damaged_memory_can_be_reset(folder: Path, content: bytes) -> None:
    (folder / "chroma.sqlite3").write_bytes(content)
    if content:
        with pytest.raises(StoreError, match="damaged"):
            MemoryStore.open(folder)
    assert reset_folder(folder, discard=True, now=NOW).aside is None
    assert [path.name for path in folder.parent.iterdir()] == ["memory"]
    with MemoryStore.open(folder) as store:
        assert dict(store.strategies) == {record.id: record for record in load_seed().strategies}


def test_a_folder_with_other_files_is_left_alone(folder: Path) -> None:
    (folder / "thesis.txt").write_text("Do not move.")
    with pytest.raises(StoreError, match="thesis"):
        reset_folder(folder)
    assert len(list(folder.parent.iterdir())) == 1
    with pytest.raises(StoreError, match="no folder"):
        reset_folder(folder / "thesis.txt")


def test_a_memory_in_use_is_not_moved(folder: Path) -> None:
    with (folder / "htam.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="Another process"):
            reset_folder(folder, wait_seconds=0.1)
    assert len(list(folder.parent.iterdir())) == 1


def test_a_new_folder_gets_the_seed(tmp_path: Path) -> None:
    assert reset_folder(tmp_path / "new").aside is None
    assert (tmp_path / "new" / "chroma.sqlite3").exists()


def test_a_store_that_is_open_meanwhile_goes_on_in_the_new_memory(folder: Path) -> None:
    with MemoryStore.open(folder) as store:
        reset_folder(folder, now=NOW)
        store.add_experience(experience("run:2:0:0", "instruction-throughput", KNOWN))
        assert store.refresh()
        assert [record.id for record in store.experiences] == ["run:2:0:0"]


def test_a_home_and_the_folder_itself_can_be_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert reset_folder(Path("~/memory"), now=NOW).aside == str(folder.with_name("memory-before-20260601-120000"))
    monkeypatch.chdir(folder)
    assert reset_folder(Path(), now=NOW).aside == str(folder.with_name("memory-before-20260601-120000-1"))
    monkeypatch.chdir(folder.parent)
    with MemoryStore.open(folder) as store:
        assert len(store.experiences) == 0


@pytest.mark.parametrize("discard", [False, True])
def test_a_link_stays_one(folder: Path, tmp_path: Path, discard: bool) -> None:
    (tmp_path / "link").symlink_to(folder)
    report = reset_folder(tmp_path / "link", discard=discard, now=NOW)
    assert report.aside == (None if discard else str(folder.with_name("memory-before-20260601-120000")))
    assert (tmp_path / "link").readlink() == folder
    with MemoryStore.open(tmp_path / "link") as store:
        assert len(store.experiences) == 0
    assert len(list(tmp_path.iterdir())) == (2 if discard else 3)


def test_a_reset_that_fails_leaves_the_old_memory_in_its_place(folder: Path) -> None:
    def fail(place: Path) -> MemoryStore:
        raise StoreError("No.", "Try again.", "memory-refused")

    with pytest.raises(StoreError, match="No"):
        reset_folder(folder, reopen=fail)
    assert list(folder.parent.iterdir()) == [folder]
    with MemoryStore.open(folder) as store:
        assert len(store.experiences) == 1


def test_a_process_that_waits_to_write_goes_on_in_the_new_memory(folder: Path) -> None:
    """It waits while the new memory is built, and finds it whole: never a folder that is not there."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom htam_agent.memory.store import MemoryStore\n"
        "from tests.support.memory import experience\n"
        "with MemoryStore.open(Path(sys.argv[1])) as store:\n    print('ready', flush=True)\n    sys.stdin.readline()\n"
        f"    store.add_experience(experience('new:1:0:0', 'instruction-throughput', '{KNOWN}'))\n"
    )
    root = Path(__file__).resolve().parents[2]
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert writer.stdin is not None
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"

    def build(place: Path) -> MemoryStore:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
        time.sleep(0.3)
        return MemoryStore.open(place)

    reset_folder(folder, reopen=build)
    writer.communicate(timeout=60)
    assert writer.returncode == 0
    with MemoryStore.open(folder) as store:
        assert [record.id for record in store.experiences] == ["new:1:0:0"]
