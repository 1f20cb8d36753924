"""Beginning anew: the seed is there again whatever the folder held, and the old memory is kept."""

from __future__ import annotations

import fcntl
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
