"""Faulty kernels made from correct ones: which protocol sees the fault?

Every mutant is built, looked at by a search for inputs on which it differs from the kernel that it was made from (a
process of its own, which shares neither sizes nor distributions with the evaluator), and judged under every protocol,
untimed, at the precision ieee. What the search finds nothing for is listed as equivalent, with how many inputs were
tried. The kill rates are over witnessed mutants.
"""

from __future__ import annotations

import argparse
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.evaluator.benches import add_options
from benchmarks.evaluator.items import Budget, Items, describe_machine
from benchmarks.mutation.mutate import Mutant, mutants_of
from benchmarks.mutation.operators import OPERATORS
from benchmarks.mutation.small_operator import Operator
from benchmarks.mutation.witness import Witness

if TYPE_CHECKING:
    from htam_agent.evaluation.bench import Bench
    from htam_agent.verdict import CompileResult

MOST = 22


class Jury:
    """One operator's bench and the searching process; judges mutant by mutant."""

    def __init__(self, operator: Operator, arguments: argparse.Namespace, witness: Witness) -> None:
        self._operator = operator
        self._arguments = arguments
        self._witness = witness
        self._folder: Path = arguments.work / f"mutants-{operator.name}-{uuid.uuid4().hex[:6]}"
        self._bench: Bench | None = None
        self._original: CompileResult | None = None

    def open(self) -> None:
        """Opens the bench and judges the correct kernel: a control that must be correct everywhere."""
        from htam_agent.evaluation.bench import Bench, Limits
        from htam_agent.evaluation.judge import PROTOCOLS
        from htam_agent.task import Task

        self._folder.mkdir(parents=True, exist_ok=True)
        task = self._folder / "task.py"
        task.write_text(self._operator.task(), encoding="utf-8")
        self._bench = Bench(
            Task.parse(str(task)),
            backend=self._arguments.backend,
            precision="ieee",
            protocols=PROTOCOLS,
            policy="own-kernels-only",
            folder=self._folder / "bench",
            limits=Limits(run_seconds=10.0, total_seconds=60.0),
            compile_baseline=False,
        )
        self._bench.open()
        self._original = self._build("original.py", self._operator.kernel(self._arguments.backend))

    def control(self) -> dict[str, object]:
        """The verdicts on the correct kernel."""
        bench, original = self._opened()
        result = bench.run(original, timing=False)
        return {"verdict": result.verdict, "reason": result.reason, "protocols": result.protocols}

    def judge(self, mutant: Mutant) -> dict[str, object]:
        """One mutant's facts."""
        facts: dict[str, object] = {
            "operator": mutant.operator,
            "kind": mutant.kind,
            "change": mutant.change,
            "built": False,
        }
        bench, original = self._opened()
        compiled = self._build("mutant.py", mutant.text)
        if not compiled.ok:
            return {**facts, "reason": compiled.reason[:200]}
        began = time.monotonic()
        seen = self._witness.look(
            {
                "operator": mutant.operator,
                "kind": mutant.kind,
                "original": _file(original),
                "mutant": _file(compiled),
            }
        )
        facts |= {"built": True, **seen, "search_s": time.monotonic() - began}
        if not seen["witnessed"] and not self._arguments.all:
            return facts
        result = bench.run(compiled, timing=False)
        return facts | {
            "protocols": dict(result.protocols),
            "stage": result.stage,
            "reason": result.reason[:300],
            "seconds": result.seconds,
        }

    def close(self) -> None:
        """Ends the bench."""
        if self._bench is not None:
            self._bench.close()
        self._bench = None

    def _build(self, name: str, kernel: str) -> CompileResult:
        assert self._bench is not None, "opened first"
        path = self._folder / name
        path.write_text(self._operator.candidate(self._arguments.backend, kernel), encoding="utf-8")
        return self._bench.compile(path)

    def _opened(self) -> tuple[Bench, CompileResult]:
        if self._bench is None or self._original is None:
            self.open()
        assert self._bench is not None, "opened above"
        assert self._original is not None, "built above"
        return self._bench, self._original


def _file(compiled: CompileResult) -> dict[str, str]:
    return {"file": str(Path(compiled.folder) / "candidate.py"), "folder": compiled.folder}


def judge_operator(
    operator: Operator, chosen: list[Mutant], arguments: argparse.Namespace, items: Items, budget: Budget
) -> None:
    """The control and all mutants of one operator that are not done."""
    control = f"control/{arguments.backend}/{operator.name}"
    keys = {mutant.id: mutant for mutant in chosen}
    if control in items and all(key in items for key in keys):
        return
    with Witness(arguments.backend) as witness:
        jury = Jury(operator, arguments, witness)
        try:
            for key in budget.each([control, *keys], items):
                try:
                    facts = jury.control() if key == control else jury.judge(keys[key])
                except Exception as error:  # noqa: BLE001 - a verdict that is lost is written down as such
                    facts = {"error": f"{type(error).__name__}: {error}"[:500]}
                    jury.close()
                items.add(key, **facts)
        finally:
            jury.close()


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="h200_evaluator.py mutants", description=__doc__)
    add_options(parser, tasks=False)
    parser.add_argument("--most", type=int, default=MOST, help="mutants of one operator")
    parser.add_argument("--operators", nargs="+", default=list(OPERATORS))
    parser.add_argument("--jobs", type=int, help="operators at a time (4 on cuda: the GPU waits for the host mostly)")
    parser.add_argument("--all", action="store_true", help="judge those without a witness too")
    arguments = parser.parse_args(words)
    items = Items(arguments.out, "mutants", arguments.earlier)
    chosen = {
        name: mutants_of(name, OPERATORS[name].kernel(arguments.backend), arguments.backend, arguments.most)
        for name in arguments.operators
    }
    waiting = sum(mutant.id not in items for found in chosen.values() for mutant in found)
    print(f"mutants: {waiting}, about {0.6 * waiting + 8.0 * len(chosen):.0f} s", flush=True)
    items.add_run(machine=describe_machine(arguments.backend))
    budget = Budget(arguments.budget_seconds)

    def judge(name: str) -> None:
        if budget.left() > 10.0:
            judge_operator(OPERATORS[name], chosen[name], arguments, items, budget)

    with ThreadPoolExecutor(arguments.jobs or (4 if arguments.backend == "cuda" else 1)) as pool:
        list(pool.map(judge, chosen))
