"""C++ kernels under AddressSanitizer: reads and writes outside of tensors that give right numbers by luck.

The kernel is built again with checks and served under its usual name; the runner starts with the sanitizer's library
loaded first, so that torch's tensors come from its allocator, each with guarded borders. Undefined behaviour that has
one meaning on every processor we know (overlong rows of an array, overflow of signed integers) is looked for as well;
unaligned vector loads, which honest kernels use, are not. Source: GCC's manual, Program Instrumentation Options, and
the AddressSanitizer page on flags. ThreadSanitizer is left out: it does not know GCC's OpenMP runtime and reports races
where there are none.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from htam_agent.backends.flags import CPP_FLAGS

FLAGS = (
    *(flag for flag in CPP_FLAGS if flag != "-O3"),
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fsanitize=address",
    "-fsanitize=bounds,signed-integer-overflow,integer-divide-by-zero,null",
)
OPTIONS = "detect_leaks=0:exitcode=86:allocator_may_return_null=1:detect_odr_violation=0:symbolize=1"
REPORT = re.compile(r"ERROR: AddressSanitizer: ([\w-]+)")
ACCESS = re.compile(r"^(READ|WRITE) of size (\d+)", re.MULTILINE)
FRAME = re.compile(r"^\s*#\d+ 0x[0-9a-f]+ in (.+?) (\S+)$", re.MULTILINE)
PLACE = re.compile(r"is located (\d+) bytes (?:to the right of|after|to the left of|before|inside of?) .*?(\d+)-byte")
UNDEFINED = re.compile(r"^(\S+?):(\d+):\d+: runtime error: (.+)$", re.MULTILINE)


def library(compiler: str) -> list[str]:
    """The libraries that must be loaded first, the sanitizer's and, since it looks for its symbols at once, the C++
    one; empty where this compiler has none."""
    found = []
    for name in ("libasan.so", "libstdc++.so.6"):
        try:
            ran = subprocess.run(
                [compiler, f"-print-file-name={name}"], capture_output=True, text=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return []
        path = Path(ran.stdout.strip())
        if not path.is_absolute() or not path.exists():
            return []
        found.append(str(path.resolve()))
    return found


def environment(libraries: Sequence[str]) -> dict[str, str]:
    """What a runner under the sanitizer has besides."""
    return {"LD_PRELOAD": ":".join(libraries), "ASAN_OPTIONS": OPTIONS, "UBSAN_OPTIONS": "print_stacktrace=0"}


def address_errors(output: str, file: str) -> str:
    """The report about the kernel of this file name (its stem is enough) in words; empty for none of it."""
    report = REPORT.search(output)
    if report is None:
        return ""
    text = output[report.start() :]
    frames = FRAME.findall(text)
    own = [(function, where) for function, where in frames if Path(file).stem in where]
    if not own:
        return ""
    access, place = ACCESS.search(text), PLACE.search(text)
    words = [f"{report[1]} in {own[0][0].partition('(')[0]}{_line(own[0][1])}"]
    if access:
        words.append(f"a {access[1].lower()} of {access[2]} bytes")
    if place:
        words.append(f"{place[1]} bytes outside of {place[2]} bytes")
    return ", ".join(words)


def undefined_behaviour(output: str, file: str) -> str:
    """The first few findings about the kernel of this file name; empty for none."""
    found = [f"{text} (line {line})" for path, line, text in UNDEFINED.findall(output) if Path(file).stem in path]
    return "; ".join(dict.fromkeys(found[:5]))


def _line(where: str) -> str:
    number = where.rpartition(":")[2]
    return f" (line {where.split(':')[1]})" if number.isdigit() and where.count(":") else ""
