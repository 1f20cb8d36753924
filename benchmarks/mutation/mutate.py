"""Typed changes of a correct kernel's text, one at a time: the faults that people and models make."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.evaluator.files import Backend
from benchmarks.mutation.rounding import with_helpers

ELEMENT = r"(?<![\w*])[xy]\[[^\[\]]*\]"
"""A read of an input."""
STORE = r"(z\[(?:[^\[\]]|\[[^\[\]]*\])*\] = )([^;]+);"
LEAVE_LAST = "if (blockIdx.x + 1 == gridDim.x) return;"
VALUE = r"(?!-?[\d.]+f?;|-INFINITY)[^;]+"
"""Anything that is computed: no constant."""
LITERAL = r"(?<![\w.])(?!0\.0f)\d+\.\d+f"


@dataclass(frozen=True)
class Rule:
    """`pattern` in a line of code becomes `replacement`. `arithmetic`: only where values are computed, not in
    subscripts, in loop heads or in the arithmetic of indices."""

    kind: str
    pattern: str
    replacement: str
    arithmetic: bool = False


RULES = (
    Rule("dropped tail", r"< (rows|columns|total|length|inner)(?=[);&])", r"< \1 - 1"),
    Rule("dropped tail", r">= (rows|total)\)", r">= \1 - 1)"),
    Rule("dropped tail", r"< (columns|total|inner)(?=[);])", r"< \1 / 4 * 4"),
    Rule("off by one", r"\bint (\w+) = 0; \1 <", r"int \1 = 1; \1 <"),
    Rule("off by one", r"column = (threadIdx\.x|lane);", r"column = \1 + 1;"),
    Rule("off by one", r"([xy])\[index\]", r"\1[index > 0 ? index - 1 : index]"),
    Rule("off by one", r"([xy])\[row \* columns \+ column\]", r"\1[row * columns + (column > 0 ? column - 1 : 0)]"),
    Rule("off by one", r" <= ", " < "),
    Rule("off by one", r"\btap - 1\b", "tap"),
    Rule("off by one", r"tap < 3", "tap < 2"),
    Rule("off by one", r"step < 16", "step < 15"),
    Rule("off by one", r"d([xy]) < 2", r"d\1 < 1"),
    Rule("swapped index", r"(weight|bias)\[column\]", r"\1[(column + 1) % columns]"),
    Rule("swapped index", r"(weight|bias)\[column\]", r"\1[columns - 1 - column]"),
    Rule("swapped index", r"([xy])\[row \* columns \+ column\]", r"\1[row * columns + columns - 1 - column]"),
    Rule("swapped index", r"x\[(row|place) \* columns", r"x[0 * columns"),
    Rule("swapped index", r"tile\[fast\]\[slow\]", "tile[slow][fast]"),
    Rule("swapped index", r"\+ dy\)", "+ dx)"),
    Rule("swapped index", r"\+ dx\]", "+ dy]"),
    Rule("swapped index", r"bias\[channel\]", "bias[0]"),
    Rule("swapped index", r"y\[channel \* 3 \+ tap\]", "y[channel * 3 + 2 - tap]"),
    Rule("wrong axis length", r"/ columns\b", "/ (columns - 1)"),
    Rule("wrong axis length", r"\(columns - 1\)", "columns"),
    Rule("wrong axis length", r"/ total\b", "/ (total - 1)"),
    Rule("wrong axis length", r"% columns\b", "% (columns - 1)"),
    Rule("wrong axis length", r"/ 4\.0f", "/ 3.0f"),
    Rule("wrong identity", r"= -INFINITY", "= 0.0f"),
    Rule("wrong identity", r"= -INFINITY", "= -2.0f"),
    Rule("wrong identity", r"= (0\.0f|0\.0);", "= 1.0f;"),
    Rule("wrong identity", r"= (0\.0f|0\.0);", "= 0.01f;"),
    Rule("wrong identity", r": 0\.0f;", ": 1.0f;"),
    Rule("uninitialised accumulator", r"(float|double) (\w+) = (?:0\.0f|0\.0|-INFINITY);", r"\1 \2;"),
    Rule("wrong sign", r"(?<=[\w\])]) \+ (?=[\w(])", " - ", arithmetic=True),
    Rule("wrong sign", r"(?<=[\w\])]) - (?=[\w(])", " + ", arithmetic=True),
    Rule("wrong sign", r"expf\(-", "expf("),
    Rule("wrong operator", r"(?<=[\w\])]) \* (?=[\w(])", " + ", arithmetic=True),
    Rule("wrong operator", r"(?<=[\w\])]) / (?=[\w(])", " * ", arithmetic=True),
    Rule("wrong operator", r"(\w+) \+= (?=[^;]*;)", r"\1 = ", arithmetic=True),
    Rule("wrong comparison", r" > (?=[\w.]+ \?)", " < "),
    Rule("wrong comparison", r" < (?=[\w.]+ \?)", " > "),
    Rule("wrong comparison", r"\] > peak", "] < peak"),
    Rule("wrong comparison", r"\] > peak", "] >= peak"),
    Rule("wrong comparison", r"column <= row", "column >= row"),
    Rule("wrong comparison", r"fmaxf\(", "fminf("),
    Rule("wrong comparison", r"fminf\(", "fmaxf("),
    Rule("missing epsilon", r" \+ 1e-\d+f", ""),
    Rule("missing epsilon", r"fmaxf\(([^;]+?), 1e-\d+f\)", r"(\1)"),
    Rule("wrong epsilon", r"1e-(5|6)f", "1e-3f"),
    Rule("wrong epsilon", r"1e-(8|12)f", "1e-2f"),
    Rule("wrong constant", LITERAL, "1.01f*"),
    Rule("wrong constant", LITERAL, "0.9f*"),
    Rule("slightly wrong constant", LITERAL, "1.001f*"),
    Rule("truncated constant", r"0\.7978845608f", "0.8f"),
    Rule("truncated constant", r"0\.044715f", "0.045f"),
    Rule("dropped affine parameter", r" \* (weight|share)\[[^\]]*\]", ""),
    Rule("dropped affine parameter", r" \+ bias\[[^\]]*\]", ""),
    Rule("dropped term", r" \+ y\[index\]", ""),
    Rule("dropped term", r" \+ carry\b", ""),
    Rule("dropped term", r"(?<=z\[row\] = )peak \+ ", ""),
    Rule("missing stabilisation", r"expf\(([^;]+?) - peak\)", r"expf(\1)"),
    Rule("lower precision (bf16)", rf"float (\w+) = ({VALUE});", r"float \1 = as_bf16(\2);", arithmetic=True),
    Rule("lower precision (fp16)", rf"float (\w+) = ({VALUE});", r"float \1 = as_fp16(\2);", arithmetic=True),
    Rule("lower precision (tf32)", rf"float (\w+) = ({VALUE});", r"float \1 = as_tf32(\2);", arithmetic=True),
    Rule("lower precision (bf16)", r"(\w+) \+= ([^;]+);", r"\1 += as_bf16(\2);", arithmetic=True),
    Rule("lower precision (tf32)", r"(\w+) \+= ([^;]+);", r"\1 += as_tf32(\2);", arithmetic=True),
    Rule("lower precision accumulator", r"(\w+) \+= ([^;]+);", r"\1 = as_bf16(\1 + \2);", arithmetic=True),
    Rule("lower precision accumulator", r"(\w+) \+= ([^;]+);", r"\1 = as_fp16(\1 + \2);", arithmetic=True),
    Rule("lower precision (bf16)", STORE, r"\1as_bf16(\2);"),
    Rule("lower precision (fp16)", STORE, r"\1as_fp16(\2);"),
    Rule("lower precision (tf32)", STORE, r"\1as_tf32(\2);"),
    Rule("rough approximation", r"(?<!rough_)\bexpf\(", "rough_expf("),
    Rule("rough approximation", r"\btanhf\(", "rough_tanhf("),
    Rule("rough approximation", r"\blogf\(", "rough_logf("),
    Rule("rough approximation", r"\brsqrtf\(", "rough_rsqrtf("),
    Rule("rough approximation", r"\bsqrtf\(", "rough_sqrtf("),
    Rule("clipped range", ELEMENT, r"fminf(\g<0>, 6.0f)"),
    Rule("clipped range", ELEMENT, r"fmaxf(\g<0>, -6.0f)"),
    Rule("negative inputs forgotten", ELEMENT, r"fabsf(\g<0>)"),
    Rule("small values flushed", ELEMENT, r"(fabsf(\g<0>) < 1e-3f ? 0.0f : \g<0>)"),
    Rule("stale output", STORE, r"if (x[0] > 0.0f) \1\2;"),
    Rule("reads its output", r"(z\[(?:[^\[\]]|\[[^\[\]]*\])*\]) = ([^;]+);", r"\1 += \2;"),
    Rule("wrong stride", r"column \+= blockDim\.x", "column += 2 * blockDim.x"),
    Rule("wrong stride", r"column \+= blockDim\.x", "column += blockDim.x + 1"),
    Rule("wrong stride", r"column \+= 32", "column += 64"),
    Rule("wrong stride", r"\+\+(column|step|index)\)", r"\1 += 2)"),
    Rule("wrong stride", r"start \+= 16", "start += 32"),
    Rule("wrong stride", r"reach \*= 2", "reach *= 4"),
    Rule("wrong stride", r"(z|x)\[row \* columns", r"\1[row * (columns - 1)"),
    Rule("wrong stride", r"index / length % channels", "index / channels % channels"),
    Rule("wrong stride", r"\* rows \+", "* columns +"),
    Rule("incomplete reduction", r"half /= 2", "half /= 4"),
    Rule("incomplete reduction", r"half > 0", "half > 1"),
    Rule("incomplete reduction", r"half = 16;", "half = 8;"),
    Rule("incomplete reduction", r"half = blockDim\.x / 2", "half = blockDim.x / 4"),
    Rule("incomplete reduction", r"scratch\[lane \+ half\]", "scratch[half]"),
    Rule("missing barrier", r"^ *__syncthreads\(\);$", ""),
    Rule("race", r"atomicAdd\(z, ([^;]+)\);", r"*z += \1;"),
    Rule("race", r"atomicMin\(&place, column\)", "place = column"),
    Rule("race", r"if \(lane == 0\) ", ""),
    Rule("early exit", r"^  int (row|index|lane|column) = ([^;]+);$", r"\g<0>\n  " + LEAVE_LAST),
    Rule("early exit", r"(for \(int row = 0; row < rows; \+\+row\) \{)", r"\1\n    if (x[row * columns] < -2) break;"),
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A changed kernel. `change`: the line before and after."""

    id: str
    operator: str
    kind: str
    change: str
    text: str


def mutants_of(operator: str, text: str, backend: Backend, most: int, seed: int = 1) -> list[Mutant]:
    """At most `most` mutants of a kernel, spread evenly over the kinds, always the same ones."""
    by_kind: dict[str, list[tuple[str, str]]] = {}
    seen = {text}
    for kind, change, changed in _all(text):
        if changed not in seen:
            seen.add(changed)
            by_kind.setdefault(kind, []).append((change, with_helpers(changed, backend)))
    chance = random.Random(f"{seed}/{operator}/{backend}")
    for found in by_kind.values():
        chance.shuffle(found)
    chosen: list[Mutant] = []
    while len(chosen) < most and any(by_kind.values()):
        for kind, found in by_kind.items():
            if found and len(chosen) < most:
                change, changed = found.pop()
                name = f"{backend}/{operator}/{len(chosen):02d}"
                chosen.append(Mutant(id=name, operator=operator, kind=kind, change=change, text=changed))
    return chosen


def _all(text: str) -> Iterator[tuple[str, str, str]]:
    """(kind, change, new text) of every rule at every place."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not _is_code(line):
            continue
        for rule in RULES:
            for match in re.finditer(rule.pattern, line):
                if rule.arithmetic and not _computes(line, match.start()):
                    continue
                new = line[: match.start()] + _replace(rule, match) + line[match.end() :]
                changed = "\n".join([*lines[:number], new, *lines[number + 1 :]]) + "\n"
                yield rule.kind, f"{line.strip()} -> {new.strip()}", changed


def _replace(rule: Rule, match: re.Match[str]) -> str:
    """The replacement; one that ends in * is a factor on the number that was found."""
    if rule.replacement.endswith("f*"):
        value = float(match[0].rstrip("f")) * float(rule.replacement.rstrip("f*"))
        return f"{value:.9g}f" if "." in f"{value:.9g}" or "e" in f"{value:.9g}" else f"{value:.1f}f"
    return match.expand(rule.replacement)


def _is_code(line: str) -> bool:
    """Neither a directive nor the head of a function."""
    return not line.startswith(("#", "extern", "__device__", "    const float*"))


def _computes(line: str, place: int) -> bool:
    """Whether a place lies where values are computed: in no subscript, no loop head, no line about integers."""
    before = line[:place]
    if before.count("[") > before.count("]"):
        return False
    head = re.match(r" *for \([^;]*;[^;]*;[^)]*\)", line)
    if head is not None:
        return place >= head.end()
    return not re.match(r" *(int|__shared__|if) ?\b", line) or (line.lstrip().startswith("if") and " = " in before)
