"""How often a row is walked: passes of a row program, and the reductions that one walk with running statistics can do.

Every reduction has a level: how many reductions lie behind it one after the other. One pass computes all reductions of
one level; a last pass writes the outputs. Element values are evaluated again in each pass that needs them (staging of
what they read is the backend's business).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from htam_agent.coding.program import REDUCTIONS, Constant, Pass, RowProgram, Use, Value
from htam_agent.words import Record


class OnlinePair(Record):
    """Two dependent reductions over the element value `argument` (a Value or Operand) that one walk computes.

    - `softmax`: `first` is the maximum m, `second` the sum of exp(argument - m). Running (m, s) and (m', s') combine to
      M = max(m, m'), s exp(m - M) + s' exp(m' - M).
    - `moments`: `first` is the sum, `second` the sum of (argument - mean)^2 with mean = sum / columns. (n, mean, M2)
      combine by the formulas of Chan, Golub and LeVeque (1979); or use shifted sums.
    """

    kind: Literal["softmax", "moments"]
    argument: str
    first: Value
    second: Value


def passes(program: RowProgram, online: bool = False) -> list[Pass]:
    """The walks in order. The last has the outputs, and no values when nothing is written for each element.

    With `online`, both reductions of every pair of `online_pairs` belong to the pass of the first: they stand among
    its `reductions`, and its `values` hold only what the pair's argument needs.
    """
    pairs = online_pairs(program) if online else []
    merged = {pair.second.name: pair for pair in pairs}
    by_name = {value.name: value for value in program.values}
    levels = _levels(program, merged)
    done: set[str] = set()
    walks: list[Pass] = []
    depth = max((levels[value.name] for value in program.reductions), default=0)
    for level in range(1, depth + 1):
        reductions = [value for value in program.reductions if levels[value.name] == level]
        roots = [merged[value.name].argument if value.name in merged else _only(value) for value in reductions]
        walks.append(_walk(program, by_name, roots, done).model_copy(update={"reductions": reductions}))
        done.update(value.name for value in reductions)
    stored = [output.value for output in program.outputs]
    walks.append(_walk(program, by_name, stored, done).model_copy(update={"outputs": program.outputs}))
    return walks


def online_pairs(program: RowProgram) -> list[OnlinePair]:
    """The (maximum, sum of exponentials) and (mean, centred sum of squares) pairs of the program, each value in at most
    one pair."""
    by_name = {value.name: value for value in program.values}
    pairs: list[OnlinePair] = []
    taken: set[str] = set()
    for value in program.reductions:
        if value.op != "reduce_sum":
            continue
        pair = _softmax_pair(value, by_name) or _moments_pair(program, value, by_name)
        if pair is not None and not taken & {pair.first.name, pair.second.name}:
            pairs.append(pair)
            taken |= {pair.first.name, pair.second.name}
    return pairs


def needed(by_name: dict[str, Value], roots: Iterable[str]) -> set[str]:
    """Names of every value that `roots` depend on, themselves included, not looking behind reductions."""
    seen: set[str] = set()
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name in seen or name not in by_name:
            continue
        seen.add(name)
        if by_name[name].op not in REDUCTIONS:
            pending.extend(use.name for use in by_name[name].arguments if isinstance(use, Use))
    return seen


def _walk(program: RowProgram, by_name: dict[str, Value], roots: list[str], done: set[str]) -> Pass:
    """The element values behind `roots`, and before them the row values that no earlier walk has evaluated. `done`
    grows by the latter."""
    names = needed(by_name, roots)
    wanted = [value for value in program.values if value.name in names and value.op not in REDUCTIONS]
    before = [value for value in wanted if value.space != "element" and value.name not in done]
    done.update(value.name for value in before)
    return Pass(before=before, values=[value for value in wanted if value.space == "element"])


def _levels(program: RowProgram, merged: dict[str, OnlinePair]) -> dict[str, int]:
    levels: dict[str, int] = {}
    for value in program.values:
        behind = [levels.get(use.name, 0) for use in value.arguments if isinstance(use, Use)]
        levels[value.name] = max(behind, default=0) + (1 if value.op in REDUCTIONS else 0)
        if value.name in merged:
            levels[value.name] = levels[merged[value.name].first.name]
    return levels


def _only(value: Value) -> str:
    first = value.arguments[0]
    return first.name if isinstance(first, Use) else ""


def _argument(by_name: dict[str, Value], value: Value | None, place: int) -> Value | None:
    if value is None or place >= len(value.arguments):
        return None
    item = value.arguments[place]
    return by_name.get(item.name) if isinstance(item, Use) else None


def _softmax_pair(total: Value, by_name: dict[str, Value]) -> OnlinePair | None:
    """sum(exp(x - max(x)))."""
    power = _argument(by_name, total, 0)
    difference = _argument(by_name, power, 0) if power and power.op == "exp" else None
    top = _argument(by_name, difference, 1) if difference and difference.op == "sub" else None
    if top is None or difference is None or top.op != "reduce_max" or top.arguments[0] != difference.arguments[0]:
        return None
    return OnlinePair(kind="softmax", argument=_only(top), first=top, second=total)


def _moments_pair(program: RowProgram, total: Value, by_name: dict[str, Value]) -> OnlinePair | None:
    """sum((x - sum(x) / columns)^2)."""
    square = _argument(by_name, total, 0)
    if square is None or square.op not in ("square", "mul") or square.arguments[0] != square.arguments[-1]:
        return None
    centred = _argument(by_name, square, 0)
    mean = _argument(by_name, centred, 1) if centred and centred.op == "sub" else None
    if mean is None or centred is None or not _is_mean(mean, program.columns):
        return None
    first = _argument(by_name, mean, 0)
    if first is None or first.op != "reduce_sum" or first.arguments[0] != centred.arguments[0]:
        return None
    return OnlinePair(kind="moments", argument=_only(first), first=first, second=total)


def _is_mean(value: Value, columns: int) -> bool:
    if len(value.arguments) != 2 or not isinstance(value.arguments[1], Constant):
        return False
    number = value.arguments[1].value
    return (value.op == "div" and number == columns) or (value.op == "mul" and abs(number * columns - 1.0) < 1e-12)
