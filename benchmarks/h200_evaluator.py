"""What the evaluator costs, how steady it is and what it lets through, measured on one machine.

    python benchmarks/h200_evaluator.py PART --out FILE.jsonl [--budget-seconds N] [--earlier FILE.jsonl ...]
    python benchmarks/h200_evaluator.py summarise FILE.jsonl ... --out benchmarks/results/h200-evaluator.json

Every part writes one JSON line for each item as soon as it is measured; the same command goes on where the last one
ended, and `--earlier` takes over what was measured elsewhere. `--backend cpp` tries a part without a GPU. Parts:
turnaround (with the spread), kernelbench, hostile, cheats, mutants, honest.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

PARTS = {
    "turnaround": "benchmarks.evaluator.turnaround",
    "kernelbench": "benchmarks.evaluator.versus",
    "hostile": "benchmarks.evaluator.hostile",
    "cheats": "benchmarks.evaluator.cheats",
    "mutants": "benchmarks.mutation.run",
    "honest": "benchmarks.evaluator.honest",
    "summarise": "benchmarks.evaluator.summary",
}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(f"{__doc__}\nGive a part: {', '.join(PARTS)}.")
    importlib.import_module(PARTS[sys.argv[1]]).main(sys.argv[2:])


if __name__ == "__main__":
    main()
