"""Part honest: how far honest kernels are from float64 on this machine (runs honest_errors.py)."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from benchmarks.evaluator.benches import add_options


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="h200_evaluator.py honest", description=__doc__)
    add_options(parser, tasks=False)
    arguments = parser.parse_args(words)
    if not arguments.out.exists() and arguments.earlier:
        arguments.out.write_text(arguments.earlier[-1].read_text(encoding="utf-8"), encoding="utf-8")
    script = Path(__file__).parents[1] / "honest_errors.py"
    print("honest: about 60 s", flush=True)
    sys.argv = [str(script), "--backend", arguments.backend, "--out", str(arguments.out)]
    sys.argv += ["--budget-seconds", str(arguments.budget_seconds)]
    runpy.run_path(str(script), run_name="__main__")
