"""What htam itself costs: imports, the command line, the agent's share of a step, and the demo.

    .venv/bin/python benchmarks/overheads.py [--backend auto] [--steps 6] [--no-demo]

Prints one JSON object. Times are medians of `--repeats` fresh processes; `targets` are those of the project, and
`within` says which were met here. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HTAM = [sys.executable, "-c", "from htam_agent.cli import main; main()"]
TARGETS = {"import_seconds": 0.3, "help_seconds": 0.6, "agent_seconds_per_step": 0.05, "demo_seconds": 90.0}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what htam itself costs.")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--task", default=str(ROOT / "examples" / "gelu_layernorm.py"))
    parser.add_argument("--no-demo", action="store_true", help="imports and the command line alone")
    given = parser.parse_args()
    bare = median_seconds([sys.executable, "-c", "pass"], given.repeats)
    found: dict[str, object] = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "bare_python_seconds": bare,
        # Python's own start is no cost of ours.
        "import_seconds": median_seconds([sys.executable, "-c", "import htam_agent"], given.repeats) - bare,
        "help_seconds": median_seconds([*HTAM, "--help"], given.repeats),
    }
    if not given.no_demo:
        found |= run_demo(given.task, given.backend, given.steps)
    within = {name: found[name] <= limit for name, limit in TARGETS.items() if isinstance(found.get(name), float)}
    print(json.dumps({"schema": "htam.overheads/1", **found, "targets": TARGETS, "within": within}))
    return 0


def median_seconds(command: list[str], repeats: int) -> float:
    """Median wall time of fresh processes, after one that warms the file cache."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return round(statistics.median(times[1:]), 4)


def run_demo(task: str, backend: str, steps: int) -> dict[str, object]:
    """One whole run in a fresh memory; the agent's share is what each step record says of itself."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *HTAM,
            "optimize",
            task,
            "--backend",
            backend,
            "--coder",
            "template",
            "--steps",
            str(steps),
            "--json",
        ]
        environment = {**os.environ, "HTAM_RUNS": folder}
        started = time.perf_counter()
        ran = subprocess.run(command, capture_output=True, text=True, env=environment)
        seconds = time.perf_counter() - started
    if ran.returncode not in (0, 1):
        sys.exit(f"The demo failed with status {ran.returncode}:\n{ran.stderr}{ran.stdout}")
    result = json.loads(ran.stdout.splitlines()[-1])
    agent = [step["agent_seconds"] for step in result["steps"]]
    return {
        "backend": result["backend"],
        "device": result["device"],
        "verdict": result["verdict"],
        "speedup": result["speedup"],
        "demo_seconds": round(seconds, 3),
        "step_seconds": [round(step["seconds"], 3) for step in result["steps"]],
        "agent_seconds": [round(value, 4) for value in agent],
        "agent_seconds_per_step": round(statistics.median(agent), 4) if agent else None,
    }


if __name__ == "__main__":
    sys.exit(main())
