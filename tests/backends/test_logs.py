"""Short logs keep the first error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.backends.logs import blames_source, first_error, shorten
from htam_agent.backends.resources import parse_resources, without_report


@given(st.lists(st.text(max_size=60), max_size=200), st.integers(200, 2000))
def test_the_limit_holds_and_the_first_error_stays(lines: list[str], limit: int) -> None:
    noise = [line.replace("rror", "") for line in lines]
    log = "\n".join([*noise, "k.cpp:3:1: error: expected ';'", *noise])
    short = shorten(log, limit)
    assert len(short) <= limit
    assert "expected ';'" in short


def test_a_short_log_stays_as_it_is() -> None:
    assert shorten("warning: a\n") == "warning: a"


def test_first_error_names_the_line() -> None:
    assert first_error("note: x\nk.cu(1): error: y\nk.cu(2): error: z") == "k.cu(1): error: y"
    assert first_error("") == ""


@given(st.text(max_size=400))
def test_any_log_can_be_read_for_resources(log: str) -> None:
    parse_resources(log)
    without_report(log)


@pytest.mark.parametrize(
    "log",
    [
        "a1b2.cpp:3:7: error: 'x' was not declared in this scope",
        "kernel.cpp:1:10: fatal error: No space left on device: No such file or directory",
        "kernel.cpp:1:2: error: #error fatal error: No space left on device",
        "In file included from kernel.cpp:1:\n/usr/include/c++/12/vector:4:1: error: static assertion failed",
        "kernel.cpp: Assembler messages:\nkernel.cpp:12: Error: no such instruction: `bogus'",
        "/usr/bin/ld: /tmp/cc.o: in function `f':\nkernel.cpp:(.text+0x5): undefined reference to `g'",
        'kernel.cu(3): error: identifier "x" is undefined',
        'kernel.cu(1): catastrophic error: cannot open source file "no_such_header.h"',
        "ptxas error   : Entry function 'k' uses too much shared data",
        "ptxas application ptx input, line 21; error   : Unknown symbol",
    ],
)
def test_a_diagnostic_of_the_source_blames_it(log: str) -> None:
    assert blames_source(log)


@pytest.mark.parametrize(
    "log",
    [
        "",
        "g++: fatal error: cannot execute 'cc1plus': execvp: No such file or directory\ncompilation terminated.",
        "kernel.cpp:8:1: fatal error: error writing to /tmp/cc.s: No space left on device",
        "{standard input}: Fatal error: can't write 12 bytes to section .text of kernel.o: 'No space left on device'",
        "/usr/bin/ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status",
        "NVRTC_ERROR_OUT_OF_MEMORY",
        "kernel.cpp:3:7: warning: unused variable",
    ],
)
def test_what_the_machine_lacks_is_no_fault_of_the_source(log: str) -> None:
    assert not blames_source(log)
