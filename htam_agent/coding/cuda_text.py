"""The operator's own part of a CUDA kernel: what each pass fetches, evaluates, gathers and stores, as C++ text.

The skeletons hold the loops, strategies' blocks the optimisations; this module only writes down the row program.
"""

from __future__ import annotations

from htam_agent.coding.cuda_expressions import SIZES, STORAGE, argument
from htam_agent.coding.cuda_layout import Layout, leaves, roots, writes_elements
from htam_agent.coding.cuda_state import StateText
from htam_agent.coding.program import REDUCTIONS, Operand, Output, Pass, Use, Value
from htam_agent.words import Record


class PassText(Record):
    """One pass as text; `before` and `after` are lines at row level."""

    before: list[str]
    after: list[str]
    fetched: str
    state: str
    fetch: str
    consume: str
    reduces: bool
    writes_elements: bool
    workspace: str
    """Where the pass's partial results begin in the workspace of split rows."""


def pass_text(layout: Layout, index: int) -> PassText:
    """The text of pass `index`."""
    walk = layout.walks[index]
    writer = _PassWriter(layout, index)
    offset = sum(layout.state_words[:index])
    return PassText(
        before=[] if layout.plan.mapping == "flat" else [_row_assignment(layout, value) for value in walk.before],
        after=StateText(layout, index).after(),
        fetched=writer.fetched(),
        state=StateText(layout, index).state(),
        fetch=writer.fetch(),
        consume=writer.consume(),
        reduces=bool(walk.reductions),
        writes_elements=writes_elements(walk),
        workspace=f"{offset} * rows * {layout.slices}LL",
    )


def parameters(layout: Layout) -> list[str]:
    """Kernel parameters before the last (rows or elements)."""
    program = layout.program
    items = [f"const {STORAGE[item.dtype]}* __restrict__ {item.name}" for item in program.operands]
    items += [f"{STORAGE[item.dtype]}* __restrict__ {item.name}" for item in program.outputs]
    return [*items, "real* __restrict__ workspace"] if layout.plan.mapping == "split-row" else items


def row_pointers(layout: Layout) -> list[str]:
    """The start of the row in each tensor that has columns."""
    lines = []
    for item in layout.program.operands:
        if item.has_columns:
            start = f"{row_index(item, layout.program.rows)} * COLUMNS"
            lines.append(f"const {STORAGE[item.dtype]}* const {item.name}_row = {item.name} + {start};")
    lines += [
        f"{STORAGE[output.dtype]}* const {output.name}_row = {output.name} + row * COLUMNS;"
        for output in layout.program.outputs
        if output.space == "element"
    ]
    return [f"[[maybe_unused]] {line}" for line in lines]


def row_index(item: Operand, rows: int, row: str = "row") -> str:
    """The row of an operand that belongs to `row` of the iteration space."""
    if item.modulus == 1:
        return "0"
    text = row if item.divisor == 1 else f"({row} / {item.divisor})"
    # An operand that spans all rows grows with them: no modulus, since kernels serve other numbers of rows too.
    return text if item.divisor * item.modulus == rows else f"({text} % {item.modulus})"


def row_operands(layout: Layout) -> list[str]:
    """Operands without columns: one number for each row (for the whole tensor, in a flat kernel)."""
    lines = []
    for item in layout.program.operands:
        if item.has_columns or (layout.plan.mapping == "flat" and item.modulus > 1):
            continue
        index = row_index(item, layout.program.rows)
        lines.append(f"const real {item.name}_value = to_real(load_element<true>({item.name} + {index}));")
    return [f"[[maybe_unused]] {line}" for line in lines]


def row_outputs(layout: Layout) -> list[str]:
    """Stores of the outputs that have one value for each row."""
    rest = [item for item in layout.program.outputs if item.space != "element"]
    return [f"from_real({item.name}[row], {_row_name(layout, item)});" for item in rest]


def request(layout: Layout) -> str:
    """Asks for one slot of every staged operand: asynchronously where the pack is whole."""
    lines = []
    for item in layout.staged:
        operand = next(entry for entry in layout.program.operands if entry.name == item.name)
        kind = STORAGE[item.dtype]
        start = f"{operand.name} + {row_index(operand, layout.program.rows)} * COLUMNS"
        lines += [
            f"const {kind}* const {item.name}_start = {start};",
            f"Pack<{kind}>* const {item.name}_slot = kept_{item.name}.slot(slot);",
            "if (!EDGES || span.whole(slot)) {",
            f"    copy_pack({item.name}_slot, {item.name}_start + column);",
            "} else {",
            f"    *{item.name}_slot = load<true>(true, {item.name}_start, count_t(column), count_t(limit));",
            "}",
        ]
    return "\n".join(lines)


def _row_name(layout: Layout, output: Output) -> str:
    operand = next((item for item in layout.program.operands if item.name == output.value), None)
    return output.value if operand is None else f"{operand.name}_value"


def _assignment(value: Value, double: bool) -> str:
    arguments = ", ".join(argument(item, double) for item in value.arguments)
    return f"const real {value.name} = op_{value.op}({arguments});"


def _row_assignment(layout: Layout, value: Value) -> str:
    """An assignment outside the element loop, where operands are known by their value of the row."""
    operands = {item.name for item in layout.program.operands}
    arguments = [
        f"{item.name}_value" if isinstance(item, Use) and item.name in operands else argument(item, layout.double)
        for item in value.arguments
    ]
    return f"[[maybe_unused]] const real {value.name} = op_{value.op}({', '.join(arguments)});"


class _PassWriter:
    """Writes one pass. Packs are fetched into `in`, elements evaluated one by one, outputs gathered into packs."""

    def __init__(self, layout: Layout, index: int) -> None:
        self._layout = layout
        self._index = index
        self._walk: Pass = layout.walks[index]
        self._first = index == 0
        self._state = StateText(layout, index)
        kept = {item.name for item in layout.staged}
        values = {item.name for item in layout.staged if not item.operand}
        self._stop = set() if self._first else values
        self._flat = layout.plan.mapping == "flat"
        self._leaves = leaves(layout.program, self._walk, layout.pairs, self._stop, everything=self._flat)
        self._kept = [item for item in layout.staged if item.name in kept]
        self._operands = [item for item in layout.program.operands if item.name in self._leaves]
        self._values = self._needed()

    def _needed(self) -> list[Value]:
        by_name = {value.name: value for value in self._layout.program.values}
        pending = roots(self._walk, self._layout.pairs)
        if self._first:
            pending += [item.name for item in self._layout.staged if not item.operand]
        names: set[str] = set()
        while pending:
            name = pending.pop()
            value = by_name.get(name)
            if name in names or name in self._stop or value is None or not self._inside(value):
                continue
            names.add(name)
            pending.extend(use.name for use in value.arguments if isinstance(use, Use))
        return [value for value in self._layout.program.values if value.name in names and value.op not in REDUCTIONS]

    def _inside(self, value: Value) -> bool:
        """True when the value is evaluated in the element loop."""
        return self._flat or value.space == "element"

    def _from_slot(self, name: str) -> bool:
        """True when this pass finds `name` in its slot."""
        if not any(item.name == name for item in self._kept):
            return False
        return not self._first or "arrival" in self._layout.plan.blocks

    def _packed(self) -> list[Operand]:
        """Operands that are fetched pack by pack."""
        return [item for item in self._operands if item.has_columns or (self._flat and item.modulus > 1)]

    def fetched(self) -> str:
        lines = [f"    Pack<{STORAGE[item.dtype]}> {item.name};" for item in self._packed()]
        lines += [f"    Pack<real> {name};" for name in sorted(self._leaves & self._stop)]
        return "\n".join([f"struct Fetched{self._index} {{", *(lines or ["    char nothing;"]), "};"])

    def fetch(self) -> str:
        lines = []
        for item in self._packed():
            lines += self._fetch_operand(item)
        lines += [f"in.{name} = kept_{name}.get(slot);" for name in sorted(self._leaves & self._stop)]
        return "\n".join(lines)

    def _fetch_operand(self, item: Operand) -> list[str]:
        full = item.is_full(self._layout.program.rows)
        if self._layout.plan.mapping == "flat":
            if full:
                return [f"in.{item.name} = load<false>(partial, {item.name}, column, limit);"]
            return self._fetch_beside_flat(item)
        if self._from_slot(item.name):
            return [f"in.{item.name} = kept_{item.name}.get(slot);"]
        if not full:
            return [f"in.{item.name} = load_beside(partial, {item.name}_row, count_t(column), count_t(limit));"]
        arguments = f"partial, {item.name}_row, count_t(column), count_t(limit)"
        return [f"in.{item.name} = load<{self._again(item.name)}>({arguments});"]

    def _again(self, name: str) -> str:
        """Whether a later pass reads the operand from memory once more."""
        if any(item.name == name for item in self._kept):
            return "false"
        layout = self._layout
        values = {item.name for item in layout.staged if not item.operand}
        later = layout.walks[self._index + 1 :]
        return "true" if any(name in leaves(layout.program, walk, layout.pairs, values) for walk in later) else "false"

    def _fetch_beside_flat(self, item: Operand) -> list[str]:
        """A broadcast operand in a flat kernel: its place follows from the element's row and column."""
        columns = self._layout.program.columns
        rows = self._layout.program.rows
        row = row_index(item, rows, f"(element / {columns})")
        place = f"({row}) * {columns} + element % {columns}" if item.has_columns else row
        if columns % self._layout.plan.vector_width == 0 and item.has_columns:
            first = place.replace("element", "column")
            return [f"if (!partial || column < limit) in.{item.name} = load_pack<true>({item.name} + {first});"]
        return [
            "#pragma unroll",
            "for (int j = 0; j < WIDTH; ++j) {",
            "    const count_t element = partial && column + j >= limit ? limit - 1 : column + j;",
            f"    in.{item.name}.at[j] = load_element<true>({item.name} + {place});",
            "}",
        ]

    def consume(self) -> str:
        layout = self._layout
        lines = self._keep_operands()
        outputs = [item for item in self._walk.outputs if item.space == "element"]
        values = [item for item in layout.staged if not item.operand and self._first]
        pairs = self._state.pairs()
        lines += [f"Pack<{STORAGE[item.dtype]}> out_{item.name};" for item in outputs]
        lines += [f"Pack<real> keep_{item.name};" for item in values]
        lines += [f"real seen_{pair.argument}[WIDTH];" for pair in pairs if pair.kind == "softmax"]
        lines += ["#pragma unroll", "for (int j = 0; j < WIDTH; ++j) {"]
        lines += [f"    seen_{pair.argument}[j] = real(-infinity());" for pair in pairs if pair.kind == "softmax"]
        if layout.edges:
            lines += ["    if (partial && !(column + j >= 0 && column + j < limit)) continue;"]
        lines += [f"    {line}" for line in self._element_lines()]
        lines += [f"    {line}" for line in self._state.gather_lines()]
        lines += [f"    from_real(out_{item.name}.at[j], {self._local(item.value)});" for item in outputs]
        lines += [f"    keep_{item.name}.at[j] = {item.name};" for item in values]
        lines += ["}"]
        lines += [self._state.softmax_line(pair.first, pair.argument) for pair in pairs if pair.kind == "softmax"]
        lines += [f"kept_{item.name}.put(slot, keep_{item.name});" for item in values]
        lines += [self._store_line(item) for item in outputs]
        return "\n".join([*lines, *self._request_next()])

    def _store_line(self, item: Output) -> str:
        target = item.name if self._layout.plan.mapping == "flat" else f"{item.name}_row"
        return f"store(partial, {target}, count_t(column), count_t(limit), out_{item.name});"

    def _keep_operands(self) -> list[str]:
        if not self._first:
            return []
        return [
            f"kept_{item.name}.put(slot, in.{item.name});"
            for item in self._kept
            if item.operand and not self._from_slot(item.name)
        ]

    def _request_next(self) -> list[str]:
        layout = self._layout
        if not layout.plan.persistent or self._index != layout.last_walk:
            return []
        if "arrival" in layout.plan.blocks:
            return ["if (next_row < rows && next.holds(slot)) request(next, next_row, slot);"]
        if "ahead" not in layout.plan.blocks:
            return []
        return [
            "if (next_row < rows && next.holds(slot) && next.whole(slot)) {",
            "    const long long place = next_row * COLUMNS + next.pack(slot) * WIDTH - next.shift;",
            *(f"    {line}" for item in self._packed_first() for line in self._prefetch(item)),
            "}",
        ]

    def _packed_first(self) -> list[Operand]:
        """The full operands that the first pass reads."""
        names = leaves(self._layout.program, self._layout.walks[0], self._layout.pairs, set())
        rows = self._layout.program.rows
        return [item for item in self._layout.program.operands if item.name in names and item.is_full(rows)]

    def _prefetch(self, item: Operand) -> list[str]:
        """One request for each sector of 32 bytes."""
        step = max(1, 32 // (SIZES[item.dtype] * self._layout.plan.vector_width))
        return [f"if (next.pack(slot) % {step} == 0) prefetch_line({item.name} + place);"]

    def _element_lines(self) -> list[str]:
        lines = [f"const real {item.name} = to_real(in.{item.name}.at[j]);" for item in self._packed()]
        lines += [f"const real {item.name} = {item.name}_value;" for item in self._beside()]
        lines += [f"const real {name} = in.{name}.at[j];" for name in sorted(self._leaves & self._stop)]
        return [*lines, *(_assignment(value, self._layout.double) for value in self._values)]

    def _beside(self) -> list[Operand]:
        packed = {item.name for item in self._packed()}
        return [item for item in self._operands if item.name not in packed]

    def _local(self, name: str) -> str:
        """The local variable that holds an output's value."""
        operand = next((item for item in self._layout.program.operands if item.name == name), None)
        if operand is not None and operand not in self._operands:
            return f"{name}_value"
        return name
