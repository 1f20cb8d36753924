"""Several processes on one memory: killed writers, writers in turn, a held lock, a fork, a server."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import chromadb
import pytest

from htam_agent.errors import InfrastructureError, StoreError
from htam_agent.memory.embed import HashingEmbedder
from htam_agent.memory.merging import merge, read_memory
from htam_agent.memory.resetting import reset_server
from htam_agent.memory.store import MemoryStore
from tests.support.memory import SEED, experience

ROOT = Path(__file__).resolve().parents[2]

WRITER = """
import sys
from pathlib import Path
from htam_agent.memory.store import MemoryStore
from tests.support.memory import SEED, experience

place, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
url = place if place.startswith("http") else None
with MemoryStore.open(None if url else Path(place), url, seed=SEED) as store:
    print("ready", flush=True)
    for number in range(count):
        store.add_experience(experience(f"{name}:{number}:0", "wide", "wide-loads"))
        print(f"{name}:{number}:0", flush=True)
"""


def start_writer(place: Path | str, name: str, count: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRITER, str(place), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


def acknowledged(writer: subprocess.Popen[str]) -> list[str]:
    """What a writer said it had stored. Its last line may have been cut by its death."""
    assert writer.stdout is not None
    with writer.stdout:
        lines = writer.stdout.read().split("\n")
    return [line for line in lines[:-1] if line != "ready"]


def stored(folder: Path) -> list[str]:
    with MemoryStore.open(folder, seed=SEED) as store:
        return [record.id for record in store.experiences]


def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    writer = start_writer(folder, "killed", 100_000)
    assert writer.stdout is not None
    seen = [writer.stdout.readline().strip() for _ in range(12)]
    writer.send_signal(signal.SIGKILL)
    seen += acknowledged(writer)
    assert writer.wait() == -signal.SIGKILL
    found = stored(folder)
    assert len(found) == len(set(found))
    assert set(seen) - {"ready"} <= set(found)


def test_a_writer_killed_within_a_transaction_leaves_a_sound_memory(tmp_path: Path) -> None:
    """Its journal lies beside the database then, and only who may write can roll it back."""
    folder = tmp_path / "memory"
    with MemoryStore.open(folder, seed=SEED) as store:
        store.add_experience(experience("kept:1:0", "wide", "wide-loads"))
    # A cache of one page: the change goes to the database's file before it is committed.
    change = (
        "import os, signal, sqlite3, sys\nhere = sqlite3.connect(sys.argv[1])\n"
        "here.execute('PRAGMA cache_size = 1')\nhere.execute('CREATE TABLE cut (text TEXT)')\nhere.execute('BEGIN')\n"
        "here.executemany('INSERT INTO cut VALUES (?)', [('x' * 4000,)] * 200)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", change, str(folder / "chroma.sqlite3")])
    assert killed.returncode == -signal.SIGKILL
    assert (folder / "chroma.sqlite3-journal").stat().st_size > 0
    assert stored(folder) == ["kept:1:0"]


def test_a_database_in_use_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "memory"
    MemoryStore.open(folder, seed=SEED).close()
    patient = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda place, uri, timeout: patient(place, uri=uri, timeout=0.05))
    holder = patient(folder / "chroma.sqlite3")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError) as caught:
        MemoryStore.open(folder, seed=SEED)
    holder.close()
    assert caught.value.code == "memory-locked"


def test_writers_take_turns_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    writers = [start_writer(folder, name, 15) for name in ("one", "two")]
    said = [acknowledged(writer) for writer in writers]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert [len(names) for names in said] == [15, 15]
    assert sorted(stored(folder)) == sorted([*said[0], *said[1]])
    client = chromadb.PersistentClient(str(folder))
    try:
        collection = client.get_collection("htam-experiences", embedding_function=None)
        vectors = collection.get(include=["embeddings"])["embeddings"]
        assert len(vectors) == 30
        # The vector index is what two careless writers break first: it must know every row.
        assert len(collection.query(query_embeddings=[vectors[0]], n_results=30)["ids"][0]) == 30
    finally:
        client.close()


def test_a_writer_sees_that_another_process_wrote_since(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    with MemoryStore.open(folder, seed=SEED) as store:
        store.add_experience(experience("first:1:0", "wide", "wide-loads"))
        writer = start_writer(folder, "other", 3)
        assert len(acknowledged(writer)) == 3
        assert writer.wait() == 0
        store.add_experience(experience("first:2:0", "wide", "wide-loads"))
    assert sorted(stored(folder)) == ["first:1:0", "first:2:0", "other:0:0", "other:1:0", "other:2:0"]


def test_what_another_process_wrote_is_seen_after_a_refresh(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    with MemoryStore.open(folder, seed=SEED) as store:
        assert not store.refresh()
        store.add_experience(experience("own:1:0", "wide", "wide-loads"))
        assert not store.refresh(), "what a store wrote itself it need not read"
        writer = start_writer(folder, "other", 2)
        assert len(acknowledged(writer)) == 2
        assert writer.wait() == 0
        store.add_experience(experience("own:2:0", "wide", "wide-loads"))
        assert len(store.experiences) == 2
        assert store.refresh(), "an own write between must not hide the other's"
        assert len(store.experiences) == 4
        assert not store.refresh()


def test_a_rebuilt_memory_answers_as_the_one_that_was_killed(tmp_path: Path) -> None:
    """The process prints its answers and is killed with SIGKILL; the index is rebuilt from what it left."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom htam_agent.memory.attention import score_directions\n"
        "from htam_agent.memory.retrieval import retrieve_strategies\n"
        "from htam_agent.memory.store import MemoryStore\nfrom tests.support.memory import SEED, experience, state\n"
        "store = MemoryStore.open(Path(sys.argv[1]), seed=SEED)\n"
        "if len(sys.argv) > 2:\n"
        "    for i in range(30):\n"
        "        used = ('wide', 'wide-loads') if i % 3 else ('reuse', 'keep-row')\n"
        "        store.add_experience(experience(f'run:{i % 25}:0', *used, i / 40, prefix=('wide',) * (i % 3)))\n"
        "for left in (1, 3):\n"
        "    print(score_directions(state(seed=7, steps_left=left, prefix=('wide',)), store))\n"
        "print(retrieve_strategies(state(), 'wide', store), store.fingerprint)\n"
        "print('done', flush=True)\nsys.stdin.read()\n"
    )
    answers = []
    for words in (["write"], []):
        command = [sys.executable, "-c", code, str(tmp_path / "memory"), *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        ) as process:
            assert process.stdout is not None
            answers.append(list(iter(process.stdout.readline, "done\n")))
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
    assert len(answers[0]) == 3
    assert answers[0] == answers[1]


def test_a_store_notices_that_its_folder_was_moved_away(tmp_path: Path) -> None:
    """A lock on the file that was moved would not keep a process out that opened the new folder."""
    folder = tmp_path / "memory"
    with MemoryStore.open(folder, seed=SEED) as store:
        folder.rename(tmp_path / "aside")
        with pytest.raises(StoreError, match="moved or removed"):
            store.add_experience(experience("own:1:0", "wide", "wide-loads"))
        writer = start_writer(folder, "other", 1)
        assert len(acknowledged(writer)) == 1
        assert writer.wait() == 0
        assert store.refresh()
        assert [record.id for record in store.experiences] == ["other:0:0"]


def test_a_lock_that_is_held_is_waited_for_and_then_reported(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    with MemoryStore.open(folder, seed=SEED):
        pass
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys\nlock = open(sys.argv[1], 'a+')\nfcntl.flock(lock, fcntl.LOCK_EX)\n"
            "print('held', flush=True)\nsys.stdin.read()",
            str(folder / "htam.lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        started = time.monotonic()
        with pytest.raises(StoreError, match="HTAM_CHROMA_URL") as caught:
            MemoryStore.open(folder, seed=SEED, wait_seconds=0.3)
        assert caught.value.code == "memory-locked"
        assert 0.3 <= time.monotonic() - started < 5
        holder.kill()
    # A lock dies with its process.
    assert stored(folder) == []


def test_a_forked_child_is_told_instead_of_hanging(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom htam_agent.errors import StoreError\n"
        "from htam_agent.memory.store import MemoryStore\nfrom tests.support.memory import SEED, experience\n"
        "store = MemoryStore.open(Path(sys.argv[1]), seed=SEED)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n        store.add_experience(experience('a', 'wide', 'wide-loads'))\n"
        "    except StoreError as error:\n        os._exit(7 if error.code == 'memory-forked' else 1)\n"
        "    os._exit(2)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m")], env=environment, timeout=60, check=False)
    assert done.returncode == 7


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).with_name("chroma")
    command = [str(program), "run", "--host", "127.0.0.1", "--port", str(port), "--path", str(tmp_path / "server")]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def test_a_server_serves_several_writers(server: str) -> None:
    with MemoryStore.open(None, server, seed=SEED) as store:
        writer = start_writer(server, "other", 10)
        for number in range(10):
            store.add_experience(experience(f"own:{number}:0", "wide", "wide-loads"))
        assert len(acknowledged(writer)) == 10
        assert writer.wait() == 0
    with MemoryStore.open(None, server, seed=SEED) as again:
        assert again.counts() == {"directions": 2, "strategies": 4, "transitions": 4, "experiences": 20}


def test_a_servers_memory_is_refreshed_merged_and_reset_and_its_vectors_stay(server: str, tmp_path: Path) -> None:
    with MemoryStore.open(None, server, seed=SEED) as store, MemoryStore.open(None, server, seed=SEED) as other:
        other.add_experiences([experience(f"other:{i}:0:0", "wide", "wide-loads") for i in range(3)])
        assert len(store.experiences) == 0
        assert store.refresh()
        assert len(store.experiences) == 3
        store.remove("experiences", ["other:0:0:0"])
        before = store.fingerprint
    with pytest.raises(StoreError, match="vectors of") as caught:
        MemoryStore.open(None, server, seed=SEED, embedder=HashingEmbedder(64))
    assert caught.value.code == "memory-embedder"
    with MemoryStore.open(tmp_path / "mine", seed=SEED) as mine:
        merge(mine, read_memory(server, 5.0), server)
        assert mine.fingerprint == before
    assert reset_server(server).aside is None
    with MemoryStore.open(None, server) as anew:
        assert len(anew.experiences) == 0
        assert len(anew.strategies) > 50


def test_a_server_that_does_not_answer_and_a_wrong_url() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(InfrastructureError, match="does not answer") as caught:
        MemoryStore.open(None, f"http://127.0.0.1:{port}", seed=SEED)
    assert caught.value.code == "memory-server"
    with pytest.raises(StoreError, match="http://host:port"):
        MemoryStore.open(None, "localhost", seed=SEED)
