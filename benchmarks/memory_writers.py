"""Many processes write into one memory while some of them are killed: what was acknowledged is there, and once.

    python benchmarks/memory_writers.py --processes 8 --experiences 500 --killed 2 --way both --out FILE

Each process stores its experiences one by one and says so after each; the killed ones die by SIGKILL at a random point
(drawn from --seed) and are started again after the last experience that they acknowledged, so that nothing that a kill
lost is written again. A fresh process opens the memory after each kill, and one at the end. It fails (exit 1) unless
every acknowledged record is found by both, none twice, and Chroma's own index has the vector of each. `embedded`: one
folder and its lock; `server`: `chroma run` on loopback.
With the default numbers it takes one to two minutes for each way on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("embedded", "server")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--experiences", type=int, default=500, help="Of each process.")
    parser.add_argument("--killed", type=int, default=2)
    parser.add_argument("--way", choices=(*WAYS, "both"), default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="Also write the result there.")
    parser.add_argument("--write", nargs=4, metavar=("PLACE", "NAME", "FIRST", "COUNT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        write(given.write[0], given.write[1], int(given.write[2]), int(given.write[3]))
        return 0
    ways = WAYS if given.way == "both" else (given.way,)
    found: dict[str, object] = {
        "schema": "htam.memory-writers/1",
        "command": "python benchmarks/memory_writers.py " + " ".join(
            f"--{name} {getattr(given, name)}" for name in ("processes", "experiences", "killed", "way", "seed")
        ),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }  # fmt: skip
    for way in ways:
        found[way] = trial(way, given.processes, given.experiences, given.killed, given.seed)
    text = json.dumps(found, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
    return 0 if all(is_sound(found[way]) for way in ways) else 1


def is_sound(result: object) -> bool:
    """Nothing lost, nothing doubled, everything found."""
    assert isinstance(result, dict)
    whole = result["stored"] == result["expected"] == result["with_vector"]
    return whole and not result["lost"] and not result["doubled"]


def write(place: str, name: str, first: int, count: int) -> None:
    """Store the experiences from `first` up to `count` one by one, and print the id of each when it is durable."""
    from benchmarks.memory_latency import experience
    from htam_agent.memory.store import MemoryStore

    url = place if place.startswith("http") else None
    draw = random.Random(name)
    with MemoryStore.open(None if url else Path(place), url) as store:
        strategies, directions = list(store.strategies.values()), sorted(store.directions)
        for number in range(first, count):
            record = experience(number, draw, strategies, directions)
            identifier = f"{name}:{number}:0:0"
            store.add_experience(record.model_copy(update={"id": identifier, "run": name}))
            print(identifier, flush=True)


class Writer:
    """One process, killed after it acknowledged `fatal` records (None: never), and then started again where it was."""

    def __init__(self, place: str, name: str, count: int, fatal: int | None) -> None:
        self.place, self.name, self.count = place, name, count
        self.fatal = fatal
        self.acknowledged: set[str] = set()
        self.deaths = 0
        self.lost: set[str] = set()
        """Acknowledged, and not found by a process that opened the memory directly after the kill."""
        self.failed = ""
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        fatal = self.fatal
        while True:
            first = str(len(self.acknowledged))
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__)), "--write", self.place, self.name, first, str(self.count)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            assert process.stdout is not None
            count = 0
            with process.stdout:
                for line in process.stdout:
                    if not line.endswith("\n"):
                        break  # cut by its death: not acknowledged
                    self.acknowledged.add(line.strip())
                    count += 1
                    if count == fatal:
                        process.send_signal(signal.SIGKILL)
            code = process.wait()
            if code != -signal.SIGKILL:
                self.failed = f"exit code {code}" if code else ""
                return
            self.deaths += 1
            try:
                self.lost |= self.acknowledged - set(look(self.place, vectors=False)[0])
            except subprocess.CalledProcessError as error:
                self.failed = f"the memory cannot be opened after the kill: {error.stderr.decode()[-400:]}"
                return
            fatal = None


def trial(way: str, processes: int, experiences: int, killed: int, seed: int) -> dict[str, object]:
    """One way: the numbers of records and what a fresh process found."""
    draw = random.Random(seed)
    fatal = {name: draw.randint(1, experiences - 1) for name in draw.sample(range(processes), killed)}
    with tempfile.TemporaryDirectory() as folder, served(way, Path(folder)) as place:
        started = time.perf_counter()
        writers = [Writer(place, f"writer-{n}", experiences, fatal.get(n)) for n in range(processes)]
        for writer in writers:
            writer.thread.join()
        seconds = time.perf_counter() - started
        said = set().union(*(writer.acknowledged for writer in writers))
        names, with_vector = look(place)
        lost = (said - set(names)).union(*(writer.lost for writer in writers))
    return {
        "processes": processes,
        "experiences_each": experiences,
        "killed": sum(writer.deaths for writer in writers),
        "failed": [writer.failed for writer in writers if writer.failed],
        "acknowledged": len(said),
        "expected": processes * experiences,
        "stored": len(names),
        "lost": sorted(lost),
        "doubled": len(names) - len(set(names)),
        "with_vector": with_vector,
        "seconds": round(seconds, 2),
        "writes_per_second": round(processes * experiences / seconds, 1),
    }


def look(place: str, *, vectors: bool = True) -> tuple[list[str], int]:
    """The ids that a fresh process finds, and how many of them have a vector in Chroma's index; not `vectors`: 0, while
    others write, since Chroma is then asked without the lock."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CHECK, place, "vectors" if vectors else ""]
    seen = json.loads(subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True).stdout)
    return seen["names"], seen["with_vector"]


CHECK = """
import json, sys
from pathlib import Path
from urllib.parse import urlsplit
import chromadb
from htam_agent.memory.store import MemoryStore
place = sys.argv[1]
url = urlsplit(place) if place.startswith("http") else None
with MemoryStore.open(None if url else Path(place), place if url else None) as store:
    names = [record.id for record in store.experiences]
if not sys.argv[2]:
    print(json.dumps({"names": names, "with_vector": 0}))
    sys.exit()
client = chromadb.HttpClient(url.hostname, url.port) if url else chromadb.PersistentClient(place)
collection = client.get_collection("htam-experiences", embedding_function=None)
found = 0
for start in range(0, len(names), 200):
    page = collection.get(ids=names[start : start + 200], include=["embeddings"])
    found += len(page["embeddings"])
print(json.dumps({"names": names, "with_vector": found}))
"""
"""What careless writers break first is Chroma's vector index: reading a vector that it lacks fails."""


@contextmanager
def served(way: str, folder: Path) -> Iterator[str]:
    """The place to write to: a folder, or the URL of a server that lives as long as the block."""
    if way == "embedded":
        yield str(folder / "memory")
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = str(Path(sys.executable).with_name("chroma"))
    command = [program, "run", "--host", "127.0.0.1", "--port", str(port), "--path", str(folder / "server")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
