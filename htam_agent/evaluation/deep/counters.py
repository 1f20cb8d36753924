"""Hardware counters by Nsight Compute's command line: the metrics asked for, and its table. Source: Nsight Compute's
CLI guide (options, CSV pages) and its Kernel Profiling Guide (metric names).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

from htam_agent.verdict import KernelCounters

METRICS = {
    "gpu__time_duration.sum": "nanoseconds",
    "dram__bytes_read.sum": "dram_bytes_read",
    "dram__bytes_write.sum": "dram_bytes_written",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "multiprocessor_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "lts__t_sector_hit_rate.pct": "l2_hit_percent",
    "launch__registers_per_thread": "registers",
}
"""Metric -> the field of KernelCounters."""
SCALES = {
    "": 1.0, "nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9,
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12, "%": 1.0, "register/thread": 1.0,
}  # fmt: skip
DENIED = "ERR_NVGPUCTRPERM"
LAUNCHES = 16


def command(program: str, kernels: Sequence[str], log: str) -> list[str]:
    """The tool in front of a program's own command. Clocks are left as they are; `kernels` empty: every kernel."""
    options = [
        program, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--cache-control", "all",
        "--launch-count", str(LAUNCHES), "--metrics", ",".join(METRICS), "--log-file", log,
    ]  # fmt: skip
    if kernels:
        names = "|".join(re.escape(name) for name in kernels)
        options += ["--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"]
    return options


def parse(text: str) -> list[KernelCounters]:
    """One record for each profiled launch, in order, from the CSV of the raw page (one row a launch, units in the row
    below the names) or of the details page (one row a metric). Lines of the tool's own ("==PROF== ...") are skipped; a
    figure that is no number is None. A text without a table gives nothing."""
    rows = [row for row in csv.reader(_table(text)) if row]
    header = next((index for index, row in enumerate(rows) if "Kernel Name" in row), None)
    if header is None:
        return []
    names, body = rows[header], [row for row in rows[header + 1 :] if len(row) == len(rows[header])]
    if "Metric Name" in names:
        return _by_metric(names, body)
    units = dict(zip(names, body[0], strict=True)) if body and not body[0][names.index("ID")] else {}
    found = []
    for row in body[1:] if units else body:
        values = dict(zip(names, row, strict=True))
        found.append(_record(values["Kernel Name"], {name: (values[name], units.get(name, "")) for name in values}))
    return found


def _by_metric(names: Sequence[str], body: Sequence[Sequence[str]]) -> list[KernelCounters]:
    launches: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for row in body:
        values = dict(zip(names, row, strict=True))
        metrics = launches.setdefault((values.get("ID", ""), values["Kernel Name"]), {})
        metrics[values["Metric Name"]] = (values.get("Metric Value", ""), values.get("Metric Unit", ""))
    return [_record(kernel, metrics) for (_, kernel), metrics in launches.items()]


def _table(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith('"')]


def _record(kernel: str, metrics: dict[str, tuple[str, str]]) -> KernelCounters:
    figures: dict[str, object] = {}
    for metric, field in METRICS.items():
        value = _number(*metrics.get(metric, ("", "")))
        figures[field] = int(value) if value is not None and field == "registers" else value
    return KernelCounters.model_validate({"kernel": kernel[:300], **figures})


def _number(text: str, unit: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    scale = SCALES.get(unit)
    return value * scale if scale is not None and value == value and abs(value) < 1e300 else None


def in_words(found: Sequence[KernelCounters]) -> str:
    """One clause for each kernel, the longest first, of the figures that are there."""
    ordered = sorted(found, key=lambda item: item.nanoseconds or 0.0, reverse=True)
    return "; ".join(_clause(item) for item in ordered[:4])


def _clause(item: KernelCounters) -> str:
    moved = (item.dram_bytes_read or 0.0) + (item.dram_bytes_written or 0.0)
    parts = [
        (item.nanoseconds, f"{(item.nanoseconds or 0.0) / 1e3:.4g} us"),
        (moved or None, f"{moved / 1e6:.4g} MB of memory traffic"),
        (item.dram_percent, f"memory {item.dram_percent or 0.0:.0f} %"),
        (item.multiprocessor_percent, f"multiprocessors {item.multiprocessor_percent or 0.0:.0f} %"),
        (item.occupancy_percent, f"warps resident {item.occupancy_percent or 0.0:.0f} %"),
    ]
    return f"{item.kernel.partition('(')[0][:80]}: " + ", ".join(words for value, words in parts if value is not None)
