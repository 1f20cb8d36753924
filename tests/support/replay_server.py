"""Replays recorded answers of a chat model over real loopback HTTP.

A recording is a folder with `ask/0001.json`, ... (requests as they came) and `say/0001.json`, ... (the answers that
were given). The n-th request gets the n-th answer. A request of another kind than the recorded one (a repair where a
first draft was asked for, another backend, another failure) is answered 400 with the difference, which no client
retries, and noted in `mismatches`; so is a request beyond the recording. So a test that goes another way than the
recording fails loudly instead of being fed answers to other questions.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Json = dict[str, object]
RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"


@dataclass(frozen=True)
class Kind:
    """What must agree between a recorded request and the one that comes."""

    roles: tuple[str, ...]
    backend: str
    question: str
    """`generate`, or the failure that a repair is asked for."""
    has_best: bool
    """Whether a best kernel so far was shown."""


QUESTIONS = {
    "does not build": "compile",
    "results differ": "wrong",
    "was refused before it ran": "policy",
    "cannot be believed": "quarantined",
    "failed at the stage": "failed",
    "Send the complete file again": "answer",
}


def kind_of(request: Json) -> Kind:
    """The kind of a chat request of the model coder."""
    messages = request["messages"]
    assert isinstance(messages, list)
    texts = [str(message["content"]) for message in messages]
    last = texts[-1]
    question = "generate"
    if not last.startswith("# Step"):
        question = next((name for said, name in QUESTIONS.items() if said in last[:400]), "unknown")
    opening = next((text for text in texts if text.startswith("# Step")), "")
    return Kind(
        roles=tuple(str(message["role"]) for message in messages),
        backend="cuda" if re.search(r"\bCUDA_SRC\b", texts[0]) else "cpp",
        question=question,
        has_best="## The best kernel so far" in opening,
    )


class ReplayServer:
    """Serves one recording. `served` counts the answers given; `mismatches` tells what did not agree."""

    def __init__(self, folder: Path) -> None:
        self.asks: list[Json] = [json.loads(path.read_text()) for path in sorted((folder / "ask").glob("*.json"))]
        self.answers: list[Json] = [json.loads(path.read_text()) for path in sorted((folder / "say").glob("*.json"))]
        assert len(self.asks) == len(self.answers) > 0, f"{folder} is no complete recording"
        self.requests: list[Json] = []
        self.mismatches: list[str] = []
        self.served = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """What HTAM_BASE_URL is set to."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    @property
    def complete(self) -> bool:
        """Every answer was given, and nothing else was asked."""
        return self.served == len(self.answers) and not self.mismatches

    @contextmanager
    def running(self) -> Iterator[ReplayServer]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def answer(self, request: Json) -> tuple[int, Json]:
        """Status and body for the next request."""
        with self._lock:
            self.requests.append(request)
            if self.served == len(self.answers):
                return self._refuse(f"request {len(self.requests)}: the recording has {len(self.answers)} answers")
            wanted, come = kind_of(self.asks[self.served]), kind_of(request)
            if wanted != come:
                return self._refuse(f"request {len(self.requests)}: recorded {wanted}, came {come}")
            text = str(self.answers[self.served]["content"])
            self.served += 1
            return 200, completion(text, request)

    def _refuse(self, problem: str) -> tuple[int, Json]:
        self.mismatches.append(problem)
        return 400, {"error": {"message": f"replay: {problem}", "type": "invalid_request_error"}}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
                status, body = server.answer(request)
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler


def completion(text: str, request: Json) -> Json:
    """A chat completion. Token counts are a quarter of the characters, as in the recording."""
    asked, said = len(json.dumps(request["messages"])) // 4, len(text) // 4
    message = {"role": "assistant", "content": text}
    return {
        "id": "replay",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model", "replay"),
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said},
    }


@contextmanager
def replaying(name: str) -> Iterator[ReplayServer]:
    """The recording of this name, served until the block ends."""
    with ReplayServer(RECORDINGS / name).running() as server:
        yield server
