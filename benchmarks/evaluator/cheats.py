"""The red team's table on this machine: every cheat must be refused, every honest twin be correct."""

from __future__ import annotations

import argparse
import uuid
from typing import TYPE_CHECKING

from benchmarks.evaluator.benches import add_options
from benchmarks.evaluator.items import Budget, Items, describe_machine

if TYPE_CHECKING:
    from tests.cheats.table import Case

SECONDS_EACH = 1.5
LAST_SECONDS = 25.0
"""No new case begins when less is left."""


def main(words: list[str]) -> None:
    from tests.cheats.table import as_record, cases, run_table

    parser = argparse.ArgumentParser(prog="h200_evaluator.py cheats", description=__doc__)
    add_options(parser, tasks=False)
    parser.add_argument("--timed", choices=["only", "not"], help="a part of the table: timed rows need a quiet machine")
    arguments = parser.parse_args(words)
    items = Items(arguments.out, "cheats", arguments.earlier)
    budget = Budget(arguments.budget_seconds)
    waiting = [case.key for case in cases(arguments.backend) if case.key not in items]
    print(f"cheats: {len(waiting)} cases, about {SECONDS_EACH * len(waiting) + 40:.0f} s", flush=True)
    items.add_run(machine=describe_machine(arguments.backend))
    folder = arguments.work / f"cheats-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)

    def wanted(case: Case) -> bool:
        return case.key not in items and arguments.timed in (None, "only" if case.timing else "not")

    for row in run_table(arguments.backend, folder, only=wanted):
        record = as_record(row)
        key = f"{row.id} {'honest ' if row.twin else ''}{row.name}"
        items.add(key, good=row.good, **record)
        if budget.left() < LAST_SECONDS:
            print("the budget is used up; run the same command again to go on", flush=True)
            return
