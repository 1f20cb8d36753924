"""What AddressSanitizer's text becomes."""

from __future__ import annotations

from htam_agent.evaluation.deep import address

NAME = "0123abcd.cpp"
REPORT = """\
=================================================================
==77==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x621000012345 at pc 0x7f bp 0x7ffd sp 0x7ffd
READ of size 4 at 0x621000012345 thread T0
    #0 0x7f00aa in kernel /tmp/cells/deep-x/checked/0123abcd.cpp:7
    #1 0x7f00bb in ffi_call (/usr/lib/libffi.so.8+0x7)

0x621000012345 is located 0 bytes to the right of 12800-byte region [0x62100000f100,0x621000012300)
"""


def test_an_access_outside_is_told_with_its_line_and_size() -> None:
    words = address.address_errors("noise\n" + REPORT, NAME)
    assert words == "heap-buffer-overflow in kernel (line 7), a read of 4 bytes, 0 bytes outside of 12800 bytes"


def test_a_fault_of_another_library_is_not_the_candidate_s() -> None:
    assert address.address_errors(REPORT.replace("0123abcd", "torch"), NAME) == ""
    assert address.address_errors("", NAME) == ""


def test_undefined_behaviour_is_told_once_with_its_line() -> None:
    line = "0123abcd.cpp:9:13: runtime error: signed integer overflow: 2147483647 + 1 cannot be represented\n"
    assert address.undefined_behaviour(line * 3, NAME).count("signed integer overflow") == 1
    assert address.undefined_behaviour(line, "other.cpp") == ""
