"""A chat endpoint on loopback that does what a test scripts: real sockets, real HTTP, no model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Json = dict[str, object]


@dataclass
class Reply:
    """One scripted reply. `drop`: close the connection without a word; `delay`: seconds before anything is sent."""

    status: int = 200
    body: Json | str = ""
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: bool = False


def completion(text: str, *, usage: tuple[int, int] | None = (11, 7), finish: str = "stop") -> Json:
    """A chat completion as OpenAI's interface gives it; `usage` None leaves the token counts out."""
    body: Json = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}],
    }
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return body


def failure(status: int, message: str = "no", **headers: str) -> Reply:
    """An error as OpenAI's interface gives it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"error": {"message": message, "type": "error"}}, named)


class ScriptedEndpoint:
    """`requests` holds each body as it came, `times` when (seconds), `headers` its headers. After the last scripted
    reply every request is answered 418, which no client retries."""

    def __init__(self, replies: list[Reply]) -> None:
        self.replies = replies
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    @contextmanager
    def running(self) -> Iterator[ScriptedEndpoint]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _next(self, body: Json, headers: dict[str, str]) -> Reply:
        with self._lock:
            index = len(self.requests)
            self.requests.append(body)
            self.headers.append(headers)
            self.times.append(time.monotonic())
        return self.replies[index] if index < len(self.replies) else failure(418, "no reply is scripted")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
                reply = endpoint._next(body, {name.lower(): value for name, value in self.headers.items()})
                time.sleep(reply.delay)
                if reply.drop:
                    self.close_connection = True
                    return
                text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
                try:
                    self.send_response(reply.status)
                    kind = "text/html" if isinstance(reply.body, str) else "application/json"
                    for name, value in {"Content-Type": kind, **reply.headers}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(text.encode())))
                    self.end_headers()
                    self.wfile.write(text.encode())
                except (BrokenPipeError, ConnectionResetError):
                    # A client that gave up waiting is what a test of time-outs wants.
                    self.close_connection = True

        return Handler


@contextmanager
def scripted(*replies: Reply) -> Iterator[ScriptedEndpoint]:
    """An endpoint that gives these replies in order."""
    with ScriptedEndpoint(list(replies)).running() as endpoint:
        yield endpoint
