"""Which build of torch to install. A machine without an NVIDIA driver gets the CPU build, which is a tenth of the CUDA
build's size: from the package index or find-links that pip is set up with if they have it, else from TORCH_INDEX.

pip itself is asked (--dry-run --report), since only pip knows its configuration. Standard library only.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import tempfile
import urllib.parse
import urllib.request
from typing import NamedTuple

TORCH = "torch==2.13.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_LIBRARY = re.compile(r"^(nvidia-|cuda-toolkit|cuda-bindings|triton)", re.IGNORECASE)


class Offer(NamedTuple):
    """What pip would install: versions, requirements and addresses; or `reason`, why it finds nothing."""

    version: str = ""
    requires: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    reason: str = ""


class Choice(NamedTuple):
    """`arguments` for `pip install`; `sentence` says what was chosen and why. No arguments: torch cannot be had."""

    arguments: list[str]
    sentence: str


def choose_torch(python: str, driver: bool, index: str) -> Choice:
    """Ask pip of the interpreter `python` and decide. `index` is TORCH_INDEX."""
    if driver:
        return Choice([TORCH], f"There is an NVIDIA driver: {TORCH} as the package index offers it.")
    usual = ask_pip(python, [TORCH])
    if is_cpu_build(usual):
        return Choice([TORCH], f"No NVIDIA driver: the CPU build {usual.version}, from where pip is set up to look.")
    special = ["--index-url", index]
    other = ask_pip(python, [TORCH, *special])
    if is_cpu_build(other):
        return Choice([TORCH, *special], f"No NVIDIA driver: the CPU build {other.version} from {index}.")
    why = other.reason or f"that index offers {other.version}, a CUDA build"
    if not usual.version:
        return Choice([], f"{TORCH} cannot be had: {usual.reason}; and from {index}: {why}.")
    return Choice(
        [TORCH],
        f"The CPU build of torch cannot be had from {index} ({why}). Taking the CUDA build, which works without a GPU "
        f"too: {describe_size(python, usual)}. "
        "To avoid it, stop now and give an index that has the CPU build: make TORCH_INDEX=...",
    )


def is_cpu_build(offer: Offer) -> bool:
    """By its local version ("+cpu", "+cu130"); where there is none, by needing no CUDA libraries on this machine."""
    if not offer.version:
        return False
    local = offer.version.partition("+")[2]
    if local:
        return local.startswith("cpu")
    return not any(CUDA_LIBRARY.match(need) and _applies(need) for need in offer.requires)


def ask_pip(python: str, arguments: list[str], dependencies: bool = False) -> Offer:
    """What `pip install` of these arguments would take. Nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", report]
        command += ["--retries", "1", "--timeout", "20", "--disable-pip-version-check", *arguments]
        command += [] if dependencies else ["--no-deps"]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode != 0:
            return Offer(reason=_error(ran.stderr))
        with open(report, encoding="utf-8") as file:
            items = json.load(file)["install"]
    torch = next(item for item in items if item["metadata"]["name"] == "torch")
    return Offer(
        version=torch["metadata"]["version"],
        requires=tuple(torch["metadata"].get("requires_dist", ())),
        addresses=tuple(item["download_info"]["url"] for item in items),
    )


def describe_size(python: str, offer: Offer) -> str:
    """The download's size in words, asked of the servers; what could not be learnt is said."""
    whole = ask_pip(python, [TORCH], dependencies=True)
    sizes = [_size(address) for address in (whole.addresses or offer.addresses)]
    known = sum(size for size in sizes if size is not None)
    if not known:
        return "its size could not be learnt (usually 2 to 3 GB to download with NVIDIA's libraries, 6 GB on disk)"
    text = "%.2f GB to download" % (known / 1e9)
    if not whole.version or None in sizes:
        return text + " and more (not every size could be learnt; usually 2 to 3 GB with NVIDIA's libraries)"
    return text + " with NVIDIA's libraries"


def _applies(requirement: str) -> bool:
    """False for a requirement of an extra or of another kind of machine."""
    marker = requirement.partition(";")[2]
    if "extra ==" in marker:
        return False
    machines = re.findall(r"""platform_machine\s*==\s*['"]([^'"]+)['"]""", marker)
    return not machines or platform.machine() in machines


def _size(address: str) -> int | None:
    parts = urllib.parse.urlsplit(address)
    try:
        if parts.scheme == "file":
            return os.path.getsize(urllib.request.url2pathname(parts.path))
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(request, timeout=10) as answer:
            length = answer.headers.get("Content-Length")
            return int(length) if length else None
    except (OSError, ValueError):
        return None


def _error(text: str) -> str:
    lines = [line.removeprefix("ERROR: ").strip() for line in text.splitlines() if line.startswith("ERROR: ")]
    return (lines[-1] if lines else (text.strip().splitlines() or ["pip failed without a word"])[-1]).rstrip(".")
