"""What a person reads of an evaluation: the verdict, what failed first, both sides of each clock, what was not done."""

from __future__ import annotations

from htam_agent.cli.verdicts import evaluation_lines
from htam_agent.judging import Evaluation
from htam_agent.verdict import BothSides, Check, FloorFractions, GpuState, Interval, KernelCounters, Speedups, Times


def evaluation(**changes: object) -> Evaluation:
    base: dict[str, object] = {
        "kernel": "k.py", "task": "op-123", "backend": "cuda", "device": "a GPU", "precision": "tf32",
        "protocol": "strict", "policy": "own-kernels-only", "verdict": "correct", "stage": "time",
        "protocols": {"kernelbench": "correct", "strict": "correct"},
    }  # fmt: skip
    return Evaluation.model_validate({**base, **changes})


TIMED = evaluation(
    speedup=Speedups(best=1.5, eager=3.0, reason="compile: not asked for"),
    interval=Interval(low=1.49, high=1.52),
    faster=True,
    times_ms=Times(candidate=0.1, best=0.15, floor=0.08),
    device_ms=BothSides(candidate=0.1, reference=0.15),
    call_ms=BothSides(candidate=0.12, reference=0.16),
    graph_ms=BothSides(candidate=0.101, reference=0.151),
    fractions=FloorFractions(candidate=0.8, best=0.53),
    launch_bound=True,
    own_share=0.97,
    gpu_before=GpuState(sm_clock_mhz=1980),
    gpu_after=GpuState(sm_clock_mhz=1965),
    counters=[KernelCounters(kernel="softmax", dram_percent=91.2)],
    checks=[Check(name="trials", passed=True, detail="15 trials"), Check(name="state-dict", passed=True)],
    confinement=["landlock"],
    confinement_missing=["system-calls"],
)


def row(lines: list[str], name: str) -> str:
    (found,) = [line for line in lines if line.startswith(f"  {name:<14}")]
    return found[16:]


def test_a_correct_kernel_says_how_fast_against_whom_and_how_sure() -> None:
    lines = evaluation_lines(TIMED)
    assert lines[0].splitlines()[0] == "k.py: CORRECT, faster: 1.500x over best [1.490, 1.520]"
    assert row(lines, "protocols") == "strict correct (decides), kernelbench correct"
    assert row(lines, "speedup") == "best 1.500x, eager 3.000x"
    assert row(lines, "own work").startswith("97% of a call's time")
    assert "launch-bound" in row(lines, "own work")
    assert row(lines, "GPU clock") == "1980 MHz before, 1965 MHz after the timed calls"
    assert row(lines, "counters") == "softmax: DRAM 91 %"
    assert row(lines, "trials") == "15 trials"
    assert row(lines, "passed") == "state-dict"
    assert row(lines, "confinement") == "landlock; missing: system-calls"
    assert row(lines, "not done") == "compile: not asked for"


def test_each_clock_has_both_sides_in_columns() -> None:
    text = "\n".join(evaluation_lines(TIMED))
    table = {" ".join(parts[:-2]): parts[-2:] for line in text.splitlines() if len(parts := line.split()) >= 3}
    assert table["device"] == ["0.1", "0.15"]
    assert table["call"] == ["0.12", "0.16"]
    assert table["graph replay"] == ["0.101", "0.151"]
    assert table["floor"] == ["0.08", "0.08"]
    assert table["of it reached"] == ["80%", "53%"]


def test_what_failed_comes_first_and_is_said_once() -> None:
    far = "output[0] = 1 where 2 is expected"
    lines = evaluation_lines(
        evaluation(
            verdict="wrong",
            stage="verify",
            reason=f"x3: {far}",
            speedup=Speedups(reason="the verdict is wrong"),
            checks=[
                Check(name="trials", passed=True, detail="2 trials"),
                Check(name="strict: x3: output", passed=False, detail=far),
                Check(name="verified: x3: output", passed=False, detail="another"),
                Check(name="verified-fair: x3: output", passed=False, detail="another"),
            ],
        )
    )
    assert lines[0].startswith(f"k.py: WRONG at verify: x3: {far}\n")
    assert lines[1:3] == [
        "  FAILED        strict: x3: output",
        "  FAILED        verified: x3: output, verified-fair: x3: output: another",
    ]
    assert row(lines, "not timed") == "the verdict is wrong"
    assert "\n".join(lines).count(far) == 1


def test_a_kernel_that_was_not_built_has_no_rows_without_content() -> None:
    lines = evaluation_lines(
        evaluation(
            verdict="failed", stage="load", reason="it is a folder", protocols={},
            checks=[Check(name="load", passed=False, detail="it is a folder")],
        )
    )  # fmt: skip
    assert lines[0].startswith("k.py: FAILED at load: it is a folder\n")
    assert lines[1:] == []


def test_long_names_of_checks_do_not_break_the_columns() -> None:
    lines = evaluation_lines(evaluation(checks=[Check(name="a-very-long-name", passed=True, detail="told")]))
    assert row(lines, "note") == "a-very-long-name: told"
