"""Results that survive the end of a script: one JSON line for each measured item, written at once."""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Item = dict[str, Any]


class Items:
    """The lines of one part's file. A key that is there already is not measured again, unless it ended in an error."""

    def __init__(self, path: Path, part: str, earlier: list[Path]) -> None:
        self.path = path
        self.part = part
        self.items: dict[str, Item] = {}
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        before = [line for file in [*earlier, path] if file.exists() for line in file.read_text().splitlines()]
        path.write_text("".join(f"{line}\n" for line in dict.fromkeys(before)))
        for line in before:
            item = json.loads(line)
            if item["part"] == part and "key" in item and "error" not in item:
                self.items[item["key"]] = item

    def __contains__(self, key: str) -> bool:
        return key in self.items

    def add(self, key: str, **facts: object) -> Item:
        """Writes one item down and says it in a line."""
        item: Item = {"part": self.part, "key": key, **facts}
        self.items[key] = item
        self._append(item)
        shown = {name: value for name, value in facts.items() if not isinstance(value, dict | list)}
        print(f"{self.part} {key}: {json.dumps(shown)[:300]}", flush=True)
        return item

    def add_run(self, **facts: object) -> None:
        """Writes down where and how the following items are measured."""
        self._append({"part": self.part, "run": {**facts, "command": command()}})

    def _append(self, item: Item) -> None:
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(item) + "\n")


class Budget:
    """Seconds that a script may use. It ends before an item that would take longer than is left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._longest = 0.0

    def left(self) -> float:
        """Seconds until the end."""
        return self._end - time.monotonic()

    def each(self, keys: list[str], done: Items, expected: float = 0.0) -> Iterator[str]:
        """The keys that are not done, for as long as `expected` seconds, or the longest one so far, fit in."""
        for key in keys:
            if key in done:
                continue
            if self.left() < (expected or self._longest):
                print("the budget is used up; run the same command again to go on", flush=True)
                return
            began = time.monotonic()
            yield key
            self._longest = max(self._longest, time.monotonic() - began)


def read_items(files: list[Path]) -> tuple[dict[str, dict[str, Item]], list[Item]]:
    """All items by part and key (the last of a key counts), and what is known of the runs."""
    parts: dict[str, dict[str, Item]] = {}
    runs: list[Item] = []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            item = json.loads(line)
            if "run" in item:
                if item not in runs:
                    runs.append(item)
            else:
                parts.setdefault(item["part"], {})[item["key"]] = item
    return parts, runs


def command() -> str:
    """The command line of this script, without the folders of this machine."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv]
    return "python " + " ".join(words)


def describe_machine(backend: str) -> dict[str, object]:
    """Where the numbers come from."""
    from htam_agent.backends.registry import require_backend
    from htam_agent.version import __version__

    facts = require_backend(backend).device_facts().model_dump()
    return {**facts, "python": platform.python_version(), "cpus": os.cpu_count(), "htam_agent": __version__}
