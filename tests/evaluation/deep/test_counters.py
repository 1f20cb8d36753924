"""What Nsight Compute's CSV becomes."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.evaluation.deep import counters
from htam_agent.plain_text import plain_line

COLUMNS = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"]
RAW = """\
==PROF== Connected to process 4242 (/usr/bin/python3.12)
==PROF== Profiling "scale" - 0: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 4242
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__bytes_read.sum","dram__bytes_write.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed",\
"gpu__time_duration.sum","launch__registers_per_thread","sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","byte","byte","%","nsecond","register/thread","%"
"0","4242","python3.12","127.0.0.1","scale","1","7","(256, 1, 1)","(4096, 1, 1)","0","9.0",\
"4,201,472","3,905,024","41.25","3,392","16","78.5"
""".replace("\\\n", "")
DETAILS = """\
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","void scale(float *)","gpu__time_duration.sum","usecond","3.5"
"0","void scale(float *)","dram__bytes_read.sum","Mbyte","4.2"
"1","other","gpu__time_duration.sum","nsecond","100"
"""


def test_the_raw_page_gives_one_record_for_each_launch() -> None:
    (found,) = counters.parse(RAW)
    assert found.kernel == "scale"
    assert found.nanoseconds == 3392
    assert found.dram_bytes_read == 4201472
    assert found.dram_percent == pytest.approx(41.25)
    assert found.registers == 16
    assert found.l2_hit_percent is None
    words = counters.in_words([found])
    assert words.startswith("scale: 3.392 us, 8.106 MB of memory traffic, memory 41 %")


def test_the_details_page_gives_the_same_in_its_own_units() -> None:
    first, second = counters.parse(DETAILS)
    assert first.nanoseconds == pytest.approx(3500)
    assert first.dram_bytes_read == pytest.approx(4.2e6)
    assert second.kernel == "other"


@pytest.mark.parametrize(
    "text",
    ["", "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "==WARNING== No kernels were profiled."],
)
def test_a_text_without_a_table_gives_nothing(text: str) -> None:
    assert counters.parse(text) == []


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20),
            st.lists(st.one_of(st.floats(0, 1e15).map(repr), st.sampled_from(["n/a", "", "inf", "nan"])), min_size=8),
        ),
        max_size=5,
    )
)
def test_every_launch_keeps_its_name_and_figures_that_are_no_numbers_are_none(
    rows: list[tuple[str, list[str]]],
) -> None:
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    table.writerow([*COLUMNS, *counters.METRICS])
    for index, (name, values) in enumerate(rows):
        table.writerow([str(index), "1", "p", "h", name, "1", "7", "(1, 1, 1)", *values[:8]])
    found = counters.parse(text.getvalue())
    assert [item.kernel for item in found] == [plain_line(name) for name, _ in rows]
    for item, (_, values) in zip(found, rows, strict=True):
        readable = values[0].replace(".", "").replace("e", "").replace("+", "").replace("-", "").isdigit()
        assert (item.nanoseconds is not None) == readable


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    counters.parse(text)


def test_only_own_kernels_are_asked_for() -> None:
    command = counters.command("ncu", ["scale", "a.b"], "log")
    assert "regex:^(scale|a\\.b)$" in command
    assert command[command.index("--clock-control") + 1] == "none"
