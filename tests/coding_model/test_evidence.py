"""What a coder is told of a failure: its cause, and the evidence shortened; compilers and kernels are real."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.backends.base import Backend, DefaultLimits
from htam_agent.backends.cpp import CppBackend
from htam_agent.backends.cuda import CudaBackend
from htam_agent.coding.causes import cause_of_run
from htam_agent.coding.evidence import LIMIT, build_evidence, clipped, failure_of_build, failure_of_run
from htam_agent.failures import FailureCause
from htam_agent.verdict import Check, CompileResult, RunResult
from htam_agent.words import Stage, Verdict

CPP_FAULTS: list[tuple[str, FailureCause, str]] = [
    ("int f() { return 1 }", "syntax", "expected ';'"),
    ('extern "C" void f(float* y) {\n  y[0] = 1;\n  y[1] = _mm512_nothing(y[0]);\n}', "symbol", ">    3 |   y[1] ="),
    ("#include <no_such_header.h>\nint x;", "symbol", "no_such_header.h"),
    ("static void g(); void h() { undefined_name = 3; other_name = 4; g(1, 2); }", "symbol", "undefined_name"),
]
CUDA_FAULTS: list[tuple[str, FailureCause, str]] = [
    ('extern "C" __global__ void f(float* y) {\n  y[0] = 1\n}', "syntax", 'expected a ";"'),
    ('extern "C" __global__ void f(float* y) {\n  y[0] = missing(2);\n}', "symbol", ">    2 |   y[0] = missing(2);"),
    (
        'extern "C" __global__ void f(float* y) {\n  __shared__ float s[1 << 20];\n'
        "  s[threadIdx.x] = y[0];\n  __syncthreads();\n  y[1] = s[3];\n}",
        "launch",
        "shared",
    ),
]


def built(backend: Backend, source: str, folder: Path) -> CompileResult:
    if not backend.can_build().ok:
        pytest.skip(backend.can_build().reason)
    return backend.build(source, folder, DefaultLimits())


@pytest.mark.parametrize(("source", "cause", "said"), CPP_FAULTS)
def test_what_gxx_refuses_is_told_with_its_source_line(
    source: str, cause: FailureCause, said: str, tmp_path: Path
) -> None:
    failure = failure_of_build(built(CppBackend(), source, tmp_path), source)
    assert (failure.kind, failure.cause) == ("compile", cause), failure
    assert said in failure.evidence


@pytest.mark.parametrize(("source", "cause", "said"), CUDA_FAULTS)
def test_what_nvrtc_refuses_is_told_with_its_source_line(
    source: str, cause: FailureCause, said: str, tmp_path: Path
) -> None:
    failure = failure_of_build(built(CudaBackend("sm_90"), source, tmp_path), source)
    assert (failure.kind, failure.cause) == ("compile", cause), failure
    assert said in failure.evidence


def test_of_many_errors_the_first_three_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    source = "\n".join(f"int f{number}() {{ return missing{number}; }}" for number in range(30))
    failure = failure_of_build(built(CppBackend(), source, tmp_path), source)
    assert "missing2" in failure.evidence
    assert "missing9" not in failure.evidence
    assert "and 27 more errors" in failure.evidence
    assert len(failure.evidence) < 1500


def test_a_log_without_a_known_form_is_kept_and_shortened() -> None:
    text = "the compiler said something " * 1000
    evidence = build_evidence(text)
    assert len(evidence) <= LIMIT
    assert "left out" in evidence


@pytest.mark.parametrize(
    ("stage", "verdict", "reason", "detail", "cause"),
    [
        ("run", "failed", "hang: it gave no answer within 20 s and was killed with its process group", "", "timeout"),
        ("run", "failed", "crash: it was killed by SIGSEGV", "", "crash"),
        ("run", "failed", "RuntimeError: CUDA: cuLaunchKernel failed: invalid argument (1)", "", "launch"),
        ("run", "failed", "RuntimeError: CUDA: launch f failed: too many resources requested for launch", "", "launch"),
        ("run", "failed", "RuntimeError: CUDA: an illegal memory access was encountered", "", "crash"),
        ("construct", "failed", "AttributeError: /x.so: undefined symbol: norm (line 3: a.norm)", "", "symbol"),
        ("run", "failed", "ArgumentError: argument 1: TypeError: expected int (line 40: f(x))", "", "launch"),
        ("policy", "failed", "forward runs aten.mul", "", "rules"),
        ("time", "quarantined", "faster than the memory can", "", "rules"),
        ("verify", "wrong", "x1 #1: the output is tuple where tensor is expected", "", "form"),
        ("verify", "wrong", "x1 #1: input 0 afterwards[0, 1]: 1 where 2 was", "", "state"),
        ("verify", "wrong", "float64: output: error against float64 3e-4 of the output's rms", "", "precision"),
        ("run", "failed", "it stopped", "", "unknown"),
    ],
)  # fmt: skip
def test_the_evaluators_words_have_a_cause(
    stage: Stage, verdict: Verdict, reason: str, detail: str, cause: FailureCause
) -> None:
    result = RunResult(
        verdict=verdict, stage=stage, reason=reason, checks=[Check(name=stage, passed=False, detail=detail)]
    )
    assert cause_of_run(result) == cause


@pytest.mark.parametrize(
    ("name", "cause"),
    [("racecheck", "race-like"), ("memcheck", "crash"), ("other-shapes", "boundary"), ("address-sanitizer", "crash")],
)
def test_a_deep_check_that_failed_decides_the_cause(name: str, cause: FailureCause) -> None:
    checks = [Check(name=name, passed=False, detail="said"), Check(name="trials", passed=True)]
    result = RunResult(verdict="wrong", stage="verify", reason=f"{name}: said", checks=checks)
    assert cause_of_run(result) == cause
    assert "said" in failure_of_run(result).evidence or "said" in failure_of_run(result).reason


def test_the_same_words_are_said_once() -> None:
    checks = [
        Check(name=f"{name}: x1 #1: output", passed=False, detail="3 of 8 are off") for name in ("strict", "verified")
    ]
    evidence = failure_of_run(RunResult(verdict="wrong", stage="verify", reason="no", checks=checks)).evidence
    assert evidence.count("3 of 8 are off") == 1


@given(st.text(), st.text(max_size=2000))
def test_any_log_gives_evidence_of_bounded_length(log: str, source: str) -> None:
    assert len(build_evidence(log * 50, source)) <= LIMIT


@given(st.text(min_size=1, max_size=300), st.integers(200, 400))
def test_what_is_clipped_keeps_start_and_end(text: str, limit: int) -> None:
    long = text * 40
    short = clipped(long, limit)
    assert len(short) <= limit + 20
    assert short[:40] == long[:40]
    assert short[-40:] == long[-40:]
