"""Many runs at once against a model that answers at once, without any evaluation: what the agent itself can carry.

    python benchmarks/concurrency.py --runs 64 --steps 3 --out benchmarks/results/cpu-concurrency.json

All runs are in one process and share one context: one memory, one chat. The model is an HTTP server on loopback in a
process of its own; the evaluator answers from words in the candidate's text (instant_evaluator.py). Each run's task
carries a mark, the model's answers carry the mark that they were asked with, and every kernel, ledger and result is
looked through for marks of other runs afterwards. Memory is the process's own: at rest, after one run (which imports
everything), and the most while all runs are under way.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.instant_evaluator import InstantBench  # noqa: E402
from htam_agent import Result, Task, as_node  # noqa: E402
from htam_agent.services import make_context, run_options  # noqa: E402
from htam_agent.settings import Settings  # noqa: E402

TASK = ROOT / "tests" / "tasks" / "row_softmax.py"
MARK = re.compile(r"mark-\d{4}")


class Server(ThreadingHTTPServer):
    """The model; takes as many connections at once as there are runs."""

    daemon_threads = True
    request_queue_size = 256


class Model(BaseHTTPRequestHandler):
    """Answers with a kernel that carries the mark of the task in the question."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        mark = MARK.search(asked)
        file = f"# strategy: none\n# instant: 1.5\n# {mark[0] if mark else 'none'}\n\n\nclass ModelNew:\n    pass\n"
        body = {
            "id": "1", "object": "chat.completion", "created": 0, "model": "instant",
            "choices": [{
                "index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": f"```python\n{file}```"},
            }],
            "usage": {"prompt_tokens": len(asked) // 4, "completion_tokens": 20, "total_tokens": len(asked) // 4 + 20},
        }  # fmt: skip
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def model() -> Iterator[str]:
    """The address of a model in a process of its own."""
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def resident_mb() -> float:
    """Of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Watch:
    """The most memory that the process held, looked at every 20 ms."""

    def __init__(self) -> None:
        self.peak = resident_mb()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, resident_mb())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def marked_task(folder: Path, number: int) -> Task:
    """The task with a mark of its own, which stands in every question about it."""
    path = folder / f"task_{number:04d}.py"
    path.write_text(f"# mark-{number:04d}\n{TASK.read_text()}")
    return Task.parse(str(path))


def foreign_marks(result: Result, number: int) -> list[str]:
    """Marks of other runs in anything that this run left behind; and whether its own is missing."""
    own, found = f"mark-{number:04d}", set()
    for path in Path(result.run).rglob("*"):
        if path.suffix in (".json", ".jsonl", ".py", ".md"):
            found |= set(MARK.findall(path.read_text(encoding="utf-8")))
    kernel = Path(result.kernel or "").read_text(encoding="utf-8") if result.kernel else ""
    return sorted(found - {own}) + ([] if own in kernel else [f"{own} is missing"])


def measure(runs: int, steps: int, folder: Path, url: str) -> dict[str, object]:
    """One run alone, then all at once."""
    settings = Settings.load(
        {
            "backend": "cpp", "coder": "model", "model": "instant", "base_url": url, "api_key": "any", "steps": steps,
            "preflight": False, "seed": 1, "runs": folder / "runs", "memory": folder / "memory", "runs_cap_bytes": 0,
        },
        given="call",
    )  # fmt: skip
    at_rest = resident_mb()
    with closing(make_context(settings, run_options(settings))) as context:
        context.open_bench = InstantBench
        node = as_node(context)
        first = node({"task": marked_task(folder, 0)})["result"]
        after_one = resident_mb()
        alone = _timed(lambda: node({"task": marked_task(folder, 1)}))
        tasks = [marked_task(folder, number) for number in range(2, runs + 2)]
        with Watch() as watch, ThreadPoolExecutor(runs) as pool:
            started = time.monotonic()
            results = [end["result"] for end in pool.map(lambda task: node({"task": task}), tasks)]
            seconds = time.monotonic() - started
    wrong = [mark for number, result in enumerate([first]) for mark in foreign_marks(result, number)]
    wrong += [mark for number, result in enumerate(results, start=2) for mark in foreign_marks(result, number)]
    asked = sum(use.calls for result in results for use in result.cost.models)
    return {
        "runs": runs,
        "steps_each": steps,
        "finished": sum(result.verdict == "correct" and len(result.steps) == steps for result in results),
        "seconds": round(seconds, 3),
        "runs_per_second": round(runs / seconds, 3),
        "steps_per_second": round(runs * steps / seconds, 3),
        "one_run_alone_seconds": round(alone, 3),
        "questions": asked,
        "resident_mb": {
            "at_rest": round(at_rest, 1), "after_one_run": round(after_one, 1), "peak": round(watch.peak, 1),
            "each_run": round((watch.peak - after_one) / runs, 2),
        },
        "cross_talk": wrong,
        "machine": {"processors": len(os.sched_getaffinity(0)), "python": platform.python_version()},
    }  # fmt: skip


def _timed(work: object) -> float:
    assert callable(work)
    started = time.monotonic()
    work()
    return time.monotonic() - started


def serve() -> None:
    """Be the model until killed; the first line of stdout is the port."""
    with Server(("127.0.0.1", 0), Model) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="Many runs at once in one process, without evaluation.")
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    with tempfile.TemporaryDirectory() as folder, model() as url:
        found = measure(given.runs, given.steps, Path(folder), url)
    text = json.dumps(found, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    if found["cross_talk"] or found["finished"] != given.runs:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
