"""The results file from the parts' files: the summary first, the details of every part behind it."""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.evaluator.intervals import wilson
from benchmarks.evaluator.items import Item, command, read_items
from benchmarks.evaluator.turnaround import SPREAD

PROTOCOLS = ("kernelbench", "verified", "verified-fair", "strict")
LONG_MS = 0.3
"""From this device time on, and not launch-bound, the speedup's spread is to stay below 1 %; elsewhere below 3 %."""


def median(values: list[float]) -> float | None:
    """The median; null for no values."""
    return statistics.median(values) if values else None


def turnaround(items: dict[str, Item]) -> dict[str, Any]:
    """Medians over tasks whose kernel is correct, and where their time goes."""
    fine = {name: item for name, item in items.items() if item.get("verdict") == "correct"}
    shares: dict[str, list[float]] = {}
    for item in fine.values():
        for stage, seconds in item["runs"][0].get("stages", {}).items():
            shares.setdefault(stage, []).append(seconds)
    return {
        "tasks": len(items),
        "correct": len(fine),
        "not_correct": {name: item.get("reason") for name, item in items.items() if name not in fine},
        "warm_median_s": median([item["warm_built_s"] for item in fine.values()]),
        "warm_found_built_median_s": median([item["warm_cached_s"] for item in fine.values()]),
        "warm_slowest_s": max((item["warm_built_s"] for item in fine.values()), default=None),
        "cold_median_s": median([item["cold_s"] for item in fine.values()]),
        "open_median_s": median([item["open_s"] for item in fine.values()]),
        "baselines_median_s": median([item["baselines_s"] for item in fine.values()]),
        "stages_median_s": {
            stage: median([*values, *[0.0] * (len(fine) - len(values))]) for stage, values in shares.items()
        },
    }


def spread(items: dict[str, Item]) -> dict[str, Any]:
    """For each task of the spread, (max - min) / median and the standard deviation of the speedup over `best`."""
    tasks = {}
    for name in SPREAD:
        item = items.get(name)
        if item is None or "runs" not in item:
            continue
        runs = [item["first"], *item["runs"]]
        values = [run["speedup"]["best"] for run in runs if run["speedup"]["best"]]
        if len(values) < 2:
            continue
        device = median([run["device_ms"]["candidate"] for run in runs if run.get("device_ms")])
        milliseconds = device or median([run["times_ms"]["candidate"] for run in runs if run["times_ms"]["candidate"]])
        bound = any(run.get("launch_bound") for run in runs)
        limit = 0.01 if milliseconds and milliseconds >= LONG_MS and not bound else 0.03
        range_ = (max(values) - min(values)) / statistics.median(values)
        tasks[name] = {
            "task": item["task"],
            "repeats": len(values),
            "milliseconds": milliseconds,
            "launch_bound": bound,
            "speedup": statistics.median(values),
            "spread": range_,
            "standard_deviation": statistics.stdev(values) / statistics.median(values),
            "limit": limit,
            "within": range_ <= limit,
            "verdicts": dict(Counter(run["verdict"] for run in runs)),
        }
    return {
        "tasks": tasks,
        "max": max((task["spread"] for task in tasks.values()), default=None),
        "within_limits": sum(task["within"] for task in tasks.values()),
        "verdicts_identical": all(len(task["verdicts"]) == 1 for task in tasks.values()),
    }


def kernelbench(items: dict[str, Item]) -> dict[str, Any]:
    """Seconds of KernelBench's evaluator over ours, warm and from nothing."""
    rows = {
        name: {
            "task": item["task"],
            "kernelbench_s": item["kernelbench"].get("seconds"),
            "kernelbench_correct": item["kernelbench"].get("correct"),
            "kernelbench_error": item["kernelbench"].get("error"),
            "kernelbench_built_s": (item.get("kernelbench_built") or {}).get("seconds"),
            "warm_s": item["ours"]["warm_s"],
            "cold_s": item["ours"]["cold_s"],
            "verdict": item["ours"]["verdict"],
            "ratio_warm": item.get("ratio_warm"),
            "ratio_cold": item.get("ratio_cold"),
        }
        for name, item in items.items()
        if "ours" in item
    }
    plain = {name: row for name, row in rows.items() if not name.startswith("inline") and row["ratio_warm"]}
    return {
        "files": rows,
        "ratio_L1_26": plain.get("1/26", {}).get("ratio_warm"),
        "ratio_median": median([row["ratio_warm"] for row in plain.values()]),
        "ratio_cold_median": median([row["ratio_cold"] for row in plain.values()]),
    }


def mutants(items: dict[str, Item]) -> dict[str, Any]:
    """Kill rates over mutants that differ at the task's sizes, survivors of strict, those that differ at other sizes
    only (a kernel may be made for one shape: `--deep` looks at others), and what nothing was found for."""
    found = {key: item for key, item in items.items() if not key.startswith("control/")}
    built = {key: item for key, item in found.items() if item.get("built")}
    different = {key: item for key, item in built.items() if item.get("witnessed") and "protocols" in item}
    seen = {key: item for key, item in different.items() if item.get("own_sizes", True)}
    controls = {key: item for key, item in items.items() if key.startswith("control/")}
    rates = {}
    for protocol in PROTOCOLS:
        killed = sum(item["protocols"].get(protocol) != "correct" for item in seen.values())
        rates[protocol] = {"killed": killed, "total": len(seen), "interval": wilson(killed, len(seen))}
    kinds: dict[str, Counter[str]] = {}
    for item in seen.values():
        count = kinds.setdefault(item["kind"], Counter())
        count["total"] += 1
        count.update(name for name in PROTOCOLS if item["protocols"].get(name) != "correct")
    short = ("operator", "kind", "change", "how", "looked", "protocols")

    def row(item: Item) -> dict[str, Any]:
        return {name: item[name] for name in short if name in item}

    return {
        "made": len(found),
        "not_built": len(found) - len(built),
        "witnessed": len(seen),
        "equivalent": len(built) - sum(bool(item.get("witnessed")) for item in built.values()),
        "errors": [item["error"] for item in items.values() if "error" in item and "built" not in item][:20],
        "controls": {key: item.get("protocols") for key, item in controls.items()},
        "controls_correct": sum(item.get("verdict") == "correct" for item in controls.values()),
        "protocols": rates,
        "strict_says": dict(Counter(item["protocols"].get("strict") for item in seen.values())),
        "by_kind": {kind: dict(count) for kind, count in sorted(kinds.items())},
        "survivors_of_strict": {
            key: row(item) for key, item in seen.items() if item["protocols"].get("strict") == "correct"
        },
        "at_other_sizes_only": {key: row(item) for key, item in different.items() if key not in seen},
        "equivalents": {key: row(item) for key, item in built.items() if not item.get("witnessed")},
    }


def cheats(items: dict[str, Item]) -> dict[str, Any]:
    """Counts. A cheat counts as refused too where its lie had no effect and the result told the truth (defused)."""
    lies = [item for item in items.values() if not item.get("twin")]
    twins = [item for item in items.values() if item.get("twin")]
    return {
        "refused": sum(bool(item["good"]) for item in lies),
        "total": len(lies),
        "defused": [item["key"] for item in lies if item["outcome"] == "defused"],
        "missed": [{**item} for item in lies if not item["good"]],
        "twins_correct": sum(bool(item["good"]) for item in twins),
        "twins_total": len(twins),
        "false_alarms": [{**item} for item in twins if not item["good"]],
        "rows": {item["key"]: f"{item['outcome']}: {item['verdict']} ({item['stage']})" for item in items.values()},
    }


def hostile(items: dict[str, Item]) -> dict[str, Any]:
    """Sums over the blocks, the largest growth of any block, and what became of each kind."""
    blocks = [item for item in items.values() if "evaluations" in item]
    kinds: dict[str, str] = {}
    for block in blocks:
        kinds |= block["hostile"]
    growths: dict[str, list[float]] = {}
    for block in blocks:
        for name, value in block["growth_megabytes"].items():
            if value is not None:
                growths.setdefault(name, []).append(value)
    verdicts: Counter[str] = Counter()
    for block in blocks:
        verdicts.update(block["verdicts"])
    return {
        "evaluations": sum(block["evaluations"] for block in blocks),
        "lost": sum(block["lost"] for block in blocks),
        "left_over": sum(block["left_over"] for block in blocks),
        "undeserved": [line for block in blocks for line in block["undeserved"]],
        "largest_growth_megabytes": {name: max(values) for name, values in growths.items()},
        "verdicts": dict(verdicts),
        "kinds": kinds,
        "median_s": median([block["median_s"] for block in blocks]),
    }


def summarise(files: list[Path]) -> dict[str, Any]:
    """The whole results file; a part that was not measured leaves nulls and zeros."""
    parts, runs = read_items(files)
    details = {
        "turnaround": turnaround(parts.get("turnaround", {})),
        "spread": spread(parts.get("turnaround", {})),
        "kernelbench": kernelbench(parts.get("kernelbench", {})),
        "cheats": cheats(parts.get("cheats", {})),
        "mutants": mutants(parts.get("mutants", {})),
        "hostile_run": hostile(parts.get("hostile", {})),
    }
    machines = {json.dumps(run["run"]["machine"], sort_keys=True) for run in runs if "machine" in run["run"]}
    counted = ("evaluations", "lost", "left_over")
    return {
        "schema": "htam.evaluator-benchmark/1",
        "summary": {
            "turnaround_median_s": details["turnaround"]["warm_median_s"],
            "kernelbench_ratio_L1_26": details["kernelbench"]["ratio_L1_26"],
            "kernelbench_ratio_median": details["kernelbench"]["ratio_median"],
            "spread_max": details["spread"]["max"],
            "cheats_refused": details["cheats"]["refused"],
            "cheats_total": details["cheats"]["total"],
            "twins_correct": details["cheats"]["twins_correct"],
            "twins_total": details["cheats"]["twins_total"],
            "mutants": {
                name: {"killed": rate["killed"], "total": rate["total"]}
                for name, rate in details["mutants"]["protocols"].items()
            },
            "hostile_run": {name: details["hostile_run"][name] for name in counted},
        },
        "machines": [json.loads(text) for text in sorted(machines)],
        "commands": list(dict.fromkeys([*(run["run"]["command"] for run in runs), command()])),
        "details": details,
        "items": {part: list(found.values()) for part, found in parts.items() if part in ("turnaround", "kernelbench")},
    }


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="h200_evaluator.py summarise", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", help="write the details of this part alone (mutants, hostile_run ...)")
    arguments = parser.parse_args(words)
    results = summarise(arguments.files)
    if arguments.part:
        kept = {name: results[name] for name in ("schema", "machines", "commands")}
        results = {**kept, "summary": results["summary"], arguments.part: results["details"][arguments.part]}
        results["summary"] = {name: value for name, value in results["summary"].items() if name == arguments.part}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results["summary"], indent=1))
