"""What kind of fault a failed candidate has: read off the compiler's words, the evaluator's, and where outputs differ.

A cause is a hint for whoever mends the kernel and a word for the memory; it decides no verdict.
"""

from __future__ import annotations

import re

from htam_agent.failures import FailureCause, Pattern
from htam_agent.verdict import CompileResult, RunResult

PATTERN_CAUSES: dict[Pattern, FailureCause] = {
    "form": "form", "unwritten": "boundary", "not-finite": "special-values", "zeros": "launch", "close": "precision",
    "boundary": "boundary", "misplaced": "layout", "transposed": "layout", "strided": "layout", "part": "boundary",
    "scaled": "values", "shifted": "values", "unstable": "race-like", "everywhere": "values", "scattered": "values",
}  # fmt: skip

_TIMEOUT = re.compile(r"took longer than|^hang|^out of time|it hung before|was not built again", re.IGNORECASE)
_SYMBOL = re.compile(
    r"""was\snot\sdeclared|undeclared|undefined\sreference|undefined\ssymbol|is\snot\sa\smember|has\sno\s(?:field\s)?member
      | identifier\s.*\sis\sundefined|does\snot\sname\sa\stype|No\ssuch\sfile\sor\sdirectory|could\snot\sopen\ssource
      | cannot\sfind\s-l|no\smatching\sfunction|no\sinstance\sof|unresolved\sextern
      | NameError|AttributeError|ImportError|ModuleNotFoundError|named\ssymbol\snot\sfound""",
    re.IGNORECASE | re.VERBOSE,
)
_LAUNCH = re.compile(
    r"""too\smany\sresources|uses\stoo\smuch\s(?:shared|global|local)|invalid\s(?:configuration|argument|value)
      | out\sof\sresources|launch\s(?:failed|out)|ArgumentError|OverflowError
      | (?:cuLaunchKernel|cuFuncSetAttribute|launch)\w*\sfailed
      | TypeError:\s(?:this\sfunction\stakes|expected|a\skernel\stakes)""",
    re.IGNORECASE | re.VERBOSE,
)
_CRASH = re.compile(
    r"^crash|SIGSEGV|SIGABRT|SIGBUS|SIGFPE|SIGILL|illegal (?:memory access|address|instruction)|misaligned address|"
    r"out[- ]of[- ]bounds|invalid __\w+__ (?:read|write)|left-over-processes|exited with code",
    re.IGNORECASE,
)
_FORM = re.compile(
    r"has shape|has dtype|where .* is expected$|the output (?:is|has)|lies on|not exactly a torch.Tensor|"
    r"no dense tensor|state.?dict|parameters?\b.*\b(?:shape|name|missing|order)|a parameter|takes \d+ positional|"
    r"unexpected keyword",
    re.IGNORECASE,
)
_CHECKS: dict[str, FailureCause] = {
    "racecheck": "race-like", "synccheck": "race-like", "memcheck": "crash", "initcheck": "crash",
    "address-sanitizer": "crash", "other-shapes": "boundary",
}  # fmt: skip


def cause_of_build(result: CompileResult) -> FailureCause:
    """The cause of a candidate that was not built."""
    if result.stage == "policy":
        return "rules"
    text = f"{result.reason}\n{result.log}"
    if _TIMEOUT.search(result.reason):
        return "timeout"
    errors = "\n".join(line for line in text.splitlines() if re.search(r"error|undefined|unresolved", line, re.I))
    # The first error decides: others mostly follow from it.
    for line in errors.splitlines():
        if _SYMBOL.search(line):
            return "symbol"
        if _LAUNCH.search(line):
            return "launch"
        if re.search(r"\berror\b", line, re.I):
            return "syntax"
    return "syntax" if result.stage in ("load", "compile") else "unknown"


def cause_of_run(result: RunResult) -> FailureCause:
    """The cause of a candidate that was built and is not correct."""
    deep = next((_CHECKS[check.name] for check in result.checks if check.name in _CHECKS and not check.passed), None)
    if deep is not None:
        return deep
    if result.stage == "policy" or result.verdict == "quarantined":
        return "rules"
    if result.verdict == "wrong":
        return _cause_of_wrong(result)
    text = "\n".join([result.reason, *(check.detail for check in result.checks if not check.passed)])
    if _TIMEOUT.search(result.reason):
        return "timeout"
    if _CRASH.search(text):
        return "crash"
    if _LAUNCH.search(text):
        return "launch"
    if _SYMBOL.search(text):
        return "symbol"
    if "SyntaxError" in text or "does not compile" in text:
        return "syntax"
    return "form" if _FORM.search(result.reason) or result.stage == "construct" else "unknown"


def _cause_of_wrong(result: RunResult) -> FailureCause:
    if result.difference is not None:
        return PATTERN_CAUSES[result.difference.pattern]
    if "afterwards" in result.reason:
        return "state"
    if "error against float" in result.reason:
        return "precision"
    return "form" if _FORM.search(result.reason) else "values"
