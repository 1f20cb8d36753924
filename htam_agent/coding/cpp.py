"""The C++ side of the template coder: what the skeleton rows.cpp.j2 is rendered from.

Slots of the skeleton, and what a block finds there:

- `qualifier`: pointer qualifier of outputs (`__restrict__`);
- `math_exp`, `math_expm1`, `math_log`, `math_log1p`, `math_tanh`, `math_erf`, `math_sigmoid`, `math_convert`: the
  functions op_exp, ... or the 16-bit conversions, for float;
- `parallel`: a pragma before the loop over rows or tiles; `split`: one before the loop over the parts of a row;
- `row_begin`: statements at the start of a row (prefetches); it sees `reads`, the operands of the row;
- `stage`: declares `real* stage_<name>` for every name in `staged`, of `columns` elements;
- `accumulate`: the loop of a reduction pass over [begin, end), which declares `acc_<name>` for every one of
  `walk.reductions` (double for a sum, real else);
- `online`: the same for a pass whose reductions are pairs (`walk.pairs`, with `kind`, `argument`, `first`, `second`);
- `write`: the loop of the last pass over [begin, end);
- `vectorize`: a pragma before plain loops without carried dependences.

`walk.lines` are the statements of one element at index `c`, `walk.stores` those that write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from htam_agent.backends.flags import CPP_FLAGS
from htam_agent.coding.cpp_expressions import STORAGE, row_index, statement
from htam_agent.coding.plan import Plan
from htam_agent.coding.program import Output, Pass, RowProgram, Use, Value
from htam_agent.coding.schedule import OnlinePair, online_pairs, passes
from htam_agent.words import Backend, DType

SLOTS = (
    "qualifier", "math_exp", "math_expm1", "math_log", "math_log1p", "math_tanh", "math_erf", "math_sigmoid",
    "math_convert", "parallel", "split", "row_begin", "stage", "accumulate", "online", "write", "vectorize",
)  # fmt: skip


@dataclass(frozen=True)
class Reduction:
    """One reduction of a pass; `value` is the name that it reads."""

    name: str
    kind: Literal["sum", "max", "min"]
    value: str

    @property
    def type(self) -> str:
        return "double" if self.kind == "sum" else "real"

    @property
    def identity(self) -> str:
        return {"sum": "0.0", "max": "real(-INFINITY)", "min": "real(INFINITY)"}[self.kind]


@dataclass(frozen=True)
class Walk:
    """One pass as text."""

    index: int
    before: list[str]
    lines: list[str]
    reductions: list[Reduction]
    pairs: list[OnlinePair]
    stores: list[str]
    row_stores: list[str]

    @property
    def writes(self) -> bool:
        """True when the pass stores something for each element."""
        return bool(self.stores) and not self.reductions


@dataclass(frozen=True)
class Tensor:
    """A pointer argument of the kernel."""

    name: str
    type: str
    place: int
    row: str
    """C++ text of the row index."""
    has_columns: bool
    dtype: DType


SLOT_FUNCTIONS = ("exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid")


class CppRenderer:
    """Implements Renderer for backend "cpp"."""

    backend: Backend = "cpp"
    skeleton = "rows.cpp.j2"
    candidate = "candidate_cpp.py.j2"

    def default_plan(self, program: RowProgram) -> Plan:
        """Plain loops: tiles of a row where nothing is reduced, else one row after the other."""
        return Plan(backend="cpp", mapping="block-row" if program.reductions else "flat")

    def refusal(self, program: RowProgram, plan: Plan) -> str:
        """See Renderer."""
        if plan.mapping not in ("flat", "block-row", "split-row"):
            return f"the C++ skeleton has no mapping {plan.mapping!r}"
        if plan.mapping == "flat" and program.reductions:
            return "a flat mapping computes no reductions"
        for field_set, slot in (
            (plan.mapping == "split-row", "split"),
            (plan.staging != "none", "stage"),
            (plan.passes == "online", "online"),
        ):
            if field_set and slot not in plan.blocks:
                return f"no strategy on the path fills the slot {slot!r} that the plan needs"
        return _combination(program, plan)

    def context(self, program: RowProgram, plan: Plan) -> Mapping[str, object]:
        """See Renderer and the module's docstring."""
        types = {operand.dtype for operand in program.operands} | {output.dtype for output in program.outputs}
        double = "float64" in types
        walks, staged = _walks(program, plan)
        used: set[str] = {value.op for value in program.values}
        return {
            "real": "double" if double else "float",
            "double": double,
            "reads": _reads(program),
            "writes": [
                Tensor(output.name, STORAGE[output.dtype], place, "row", output.space == "element", output.dtype)
                for place, output in enumerate(program.outputs)
            ],
            "walks": walks,
            "element_types": {output.name: STORAGE[output.dtype] for output in program.outputs},
            "flags": CPP_FLAGS,
            "staged": staged,
            "functions": _functions(used),
            "halves": sorted(types & {"float16", "bfloat16"}),
        }


def _functions(used: set[str]) -> list[str]:
    """The op_ functions that this kernel calls. A strategy may replace the definition of each (not in float64)."""
    wanted = {name for name in SLOT_FUNCTIONS if name in used}
    return [name for name in SLOT_FUNCTIONS if name in wanted or (name == "exp" and "sigmoid" in wanted)]


def _combination(program: RowProgram, plan: Plan) -> str:
    if plan.mapping == "split-row" and plan.staging != "none":
        return "a row that is split over the threads is not staged"
    if plan.mapping == "split-row" and plan.passes == "online":
        return "a row that is split over the threads is not reduced by running statistics"
    if plan.mapping == "split-row" and not program.reductions:
        return "a kernel without reductions is split by tiles"
    if plan.passes == "online":
        pairs = online_pairs(program)
        paired = {name for pair in pairs for name in (pair.first.name, pair.second.name)}
        if not pairs:
            return "there is no pair of dependent reductions to merge"
        for walk in passes(program, online=True):
            names = {value.name for value in walk.reductions}
            if names & paired and names - paired:
                return "a pass has other reductions besides the pairs"
    if plan.staging != "none" and not _staged_names(program, plan):
        return "no computed value is read again in a later pass"
    return ""


def _reads(program: RowProgram) -> list[Tensor]:
    return [
        Tensor(
            operand.name,
            STORAGE[operand.dtype],
            place,
            row_index(operand, program.rows),
            operand.has_columns,
            operand.dtype,
        )
        for place, operand in enumerate(program.operands)
    ]


def _walks(program: RowProgram, plan: Plan) -> tuple[list[Walk], list[str]]:
    pairs = {pair.first.name: pair for pair in online_pairs(program)} if plan.passes == "online" else {}
    staged = _staged_names(program, plan) if plan.staging != "none" else {}
    walks: list[Walk] = []
    for index, walk in enumerate(passes(program, online=plan.passes == "online")):
        walks.append(_walk(program, walk, index, pairs, staged))
    return walks, list(staged)


def _walk(
    program: RowProgram, walk: Pass, index: int, pairs: Mapping[str, OnlinePair], staged: Mapping[str, int]
) -> Walk:
    here = [pairs[value.name] for value in walk.reductions if value.name in pairs]
    roots = [item.argument for item in here]
    roots += [_first_name(value) for value in walk.reductions if not here]
    roots += [output.value for output in walk.outputs if output.space == "element"]
    roots += [name for name, place in staged.items() if place == index]
    available = {name for name, place in staged.items() if place < index}
    stores = [f"{item.name}_row[c] = store<{STORAGE[item.dtype]}>({item.value});" for item in walk.outputs
              if item.space == "element"]  # fmt: skip
    return Walk(
        index=index,
        before=[statement(value) for value in walk.before],
        lines=_lines(program, roots, available)
        + [f"stage_{name}[c] = {name};" for name, place in staged.items() if place == index],
        reductions=[Reduction(value.name, _kind(value), _first_name(value)) for value in walk.reductions],
        pairs=here,
        stores=stores,
        row_stores=[_row_store(item) for item in walk.outputs if item.space == "row"],
    )


def _lines(program: RowProgram, roots: list[str], available: set[str]) -> list[str]:
    """Loads and element instructions behind `roots`, where `available` values come from their row buffers."""
    values = {value.name: value for value in program.values}
    operands = {operand.name: operand for operand in program.operands}
    wanted: set[str] = set()
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name in wanted:
            continue
        wanted.add(name)
        if name in values and name not in available and values[name].space == "element":
            pending.extend(use.name for use in values[name].arguments if isinstance(use, Use))
    lines = [f"const real {name} = load({name}_row[c]);" for name, item in operands.items()
             if name in wanted and item.has_columns and name not in available]  # fmt: skip
    lines += [f"const real {name} = stage_{name}[c];" for name in sorted(available & wanted)]
    return lines + [
        statement(value)
        for name, value in values.items()
        if name in wanted and name not in available and value.space == "element"
    ]


def _staged_names(program: RowProgram, plan: Plan) -> dict[str, int]:
    """Values to keep in a row buffer, with the pass that computes them: those that an earlier pass has computed and a
    later one reads directly. An operand stored in 32 bits or more is read again instead, which costs the same."""
    walks = passes(program, online=plan.passes == "online")
    computed: dict[str, int] = {}
    staged: dict[str, int] = {}
    operands = {operand.name: operand for operand in program.operands}
    values = {value.name: value for value in program.values}
    for index, walk in enumerate(walks):
        pending = [item.value for item in walk.outputs if item.space == "element"]
        pending += [_first_name(value) for value in walk.reductions]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            costs = name in values or operands[name].dtype in ("float16", "bfloat16")
            if costs and computed.get(name, index) < index:
                staged.setdefault(name, computed[name])
                continue
            if name in values and values[name].space == "element":
                pending.extend(use.name for use in values[name].arguments if isinstance(use, Use))
        read = {use.name for value in walk.values for use in value.arguments if isinstance(use, Use)}
        inside = {value.name for value in walk.values} | (read & set(operands))
        inside |= {_first_name(value) for value in walk.reductions if _first_name(value) in operands}
        for name in inside:
            if name in values or operands[name].has_columns:
                computed.setdefault(name, index)
    return staged


def _first_name(value: Value) -> str:
    item = value.arguments[0]
    return item.name if isinstance(item, Use) else ""


def _kind(value: Value) -> Literal["sum", "max", "min"]:
    return "sum" if value.op == "reduce_sum" else "max" if value.op == "reduce_max" else "min"


def _row_store(item: Output) -> str:
    return f"{item.name}_base[row] = store<{STORAGE[item.dtype]}>({item.value});"
