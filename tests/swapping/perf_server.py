"""An MCP server, run as a process: tools that fit a seam, and tools that do not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TypedDict

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

server = MCPServer("perf")


class Profile(BaseModel):
    bottleneck: str
    diagnosis: str
    fraction_of_floor: float = 0.0
    mood: str = "more than is known to the caller"


class Numbers(BaseModel):
    bottleneck: int
    diagnosis: str


class Build(BaseModel):
    ok: bool
    backend: str
    binary: str
    log: str


class Verdict(BaseModel):
    verdict: str
    stage: str
    reason: str


class Vectors(TypedDict):
    vectors: list[list[float]]


class Code(BaseModel):
    source: str = ""
    refusal: str = ""
    hopeless: bool = False


@server.tool()
def profile(kernel: str, run: dict[str, object], backend: str = "none") -> Profile:
    print("this would break a protocol on standard output")
    return Profile(bottleneck="latency", diagnosis=f"{backend}: {run['verdict']} at {os.path.basename(kernel)}")


@server.tool()
def build(source: str, folder: str, output: str, backend: str) -> Build:
    path = os.path.join(folder, "served.cpp")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source + '\nextern "C" int fastcc_was_here() { return 13; }\n')
    command = ["g++", "-O1", "-march=native", "-fopenmp", "-shared", "-fPIC", path, "-o", output]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return Build(ok=ran.returncode == 0, backend=backend, binary=output, log=ran.stderr)


@server.tool()
def judge(kernel: str, compiled: dict[str, object], protocol: str) -> Verdict:
    return Verdict(verdict="wrong", stage="verify", reason=f"{protocol}: built by {compiled['backend']}")


@server.tool()
def die(kernel: str) -> Profile:
    print("out of licences", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def sleep(kernel: str) -> Profile:
    time.sleep(30)
    return Profile(bottleneck="latency", diagnosis="late")


@server.tool()
def fail(kernel: str) -> Profile:
    raise ValueError("secret detail")


@server.tool()
def nonsense(kernel: str) -> Profile:
    return Profile(bottleneck="gravity", diagnosis="no such bottleneck")


@server.tool(structured_output=False)
def words(kernel: str) -> str:
    return "memory, I think"


@server.tool()
def number(kernel: str) -> Numbers:
    return Numbers(bottleneck=1, diagnosis="")


@server.tool()
def greedy(kernel: str, password: str) -> Profile:
    return Profile(bottleneck="latency", diagnosis=password)


@server.tool()
def embed(texts: list[str]) -> Vectors:
    return {"vectors": [[float(len(text)), 1.0, 0.0] for text in texts]}


@server.tool()
def code(request: dict[str, object], repair: dict[str, object] | None = None) -> Code:
    return Code(refusal=f"the server writes no {request['backend']}", hopeless=True)


if __name__ == "__main__":
    if "hang" in sys.argv:
        time.sleep(30)
    if "http" in sys.argv:
        server.run("streamable-http", port=int(sys.argv[-1]))
    server.run("stdio")
