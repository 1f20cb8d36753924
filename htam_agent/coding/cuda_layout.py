"""Sizes and places of a CUDA kernel that follow from a row program and a plan: packs, slots, staging, shared memory.

A row of C columns is read in packs of W elements. Where C is no multiple of W, rows do not begin at an aligned
address; packs are then laid over memory at aligned addresses, and the first and last pack of a row stick out of it. A
thread owns the packs `first + slot * lanes + lane`; what it keeps of a pack between passes lies in the pack's slot, in
registers or in shared memory, so that staging needs no barrier.
"""

from __future__ import annotations

import math

from htam_agent.coding.cuda_expressions import SIZES
from htam_agent.coding.plan import Plan
from htam_agent.coding.program import REDUCTIONS, Operand, Pass, RowProgram, Use, Value
from htam_agent.coding.schedule import OnlinePair, online_pairs, passes
from htam_agent.words import DType, Record

SHARED_LIMIT = 232448
"""Dynamic shared memory that one block of compute capability 9.0 may ask for (227 KiB)."""
REGISTER_FILE = 65536
"""32-bit registers of a multiprocessor, and so of a block."""
OTHER_REGISTERS = 16
"""Registers that a thread needs besides the ones that hold a row."""


class PlanDoesNotFit(Exception):
    """The plan cannot be rendered for this program; the message says why."""


class Staged(Record):
    """What waits between passes: an operand as stored, or an element value (in the arithmetic type)."""

    name: str
    dtype: DType
    operand: bool


class Layout(Record):
    """Everything that the text of a kernel is written from."""

    program: RowProgram
    plan: Plan
    double: bool
    walks: list[Pass]
    pairs: list[OnlinePair]
    staged: list[Staged]
    lanes: int
    slices: int
    slots: int
    teams: int
    """Rows that a block works on at a time."""
    edges: bool
    state_words: list[int]
    """Numbers that each pass gathers."""
    exchange_offset: int
    kept_offsets: dict[str, int]
    shared_bytes: int

    @property
    def real_bytes(self) -> int:
        return 8 if self.double else 4

    @property
    def last_walk(self) -> int:
        """Index of the last pass that walks over the columns."""
        return len(self.walks) - 1 if writes_elements(self.walks[-1]) else len(self.walks) - 2


def storage_of(program: RowProgram) -> list[DType]:
    """The storage types of the tensors that the kernel reads and writes, each once."""
    reads = {item.dtype for item in program.operands}
    return sorted(reads | {item.dtype for item in program.outputs})


def writes_elements(walk: Pass) -> bool:
    """True when the pass stores one value for each element."""
    return any(output.space == "element" for output in walk.outputs)


def layout_of(program: RowProgram, plan: Plan) -> Layout:
    """The layout of `plan` for `program`.

    Raises PlanDoesNotFit with the reason.
    """
    _check(program, plan)
    double = "float64" in storage_of(program)
    pairs = _pairs(program, plan)
    walks = passes(program, online=bool(pairs))
    lanes, slices, teams = _team(plan)
    flat = plan.mapping == "flat"
    edges = plan.vector_width > 1 and (flat or program.columns % plan.vector_width != 0)
    row_packs = (program.columns + (2 * plan.vector_width - 2 if edges else 0)) // plan.vector_width
    slots = plan.unroll if flat else math.ceil(math.ceil(row_packs / slices) / lanes)
    staged = _staged(program, plan, walks)
    words = [state_words(walk, pairs) for walk in walks]
    real = 8 if double else 4
    combine = 0 if plan.mapping in ("flat", "thread-row", "warp-row") else plan.threads * max(words) * real
    exchange = _aligned(combine)
    offset = exchange + (_aligned(2 * plan.cluster_size * max(words) * real) if plan.mapping == "cluster-row" else 0)
    offsets: dict[str, int] = {}
    for item in staged:
        offsets[item.name] = offset if plan.staging == "shared" else 0
        if plan.staging == "shared":
            offset = _aligned(offset + slots * plan.threads * plan.vector_width * SIZES[item.dtype])
    layout = Layout(
        program=program, plan=plan, double=double, walks=walks, pairs=pairs, staged=staged, lanes=lanes, slices=slices,
        slots=slots, teams=teams, edges=edges, state_words=words, exchange_offset=exchange,
        kept_offsets=offsets, shared_bytes=offset,
    )  # fmt: skip
    _check_room(layout)
    return layout


def state_words(walk: Pass, pairs: list[OnlinePair]) -> int:
    """Numbers that one pass gathers: one for each reduction, two for a running softmax, four for running moments."""
    total = 0
    for value in walk.reductions:
        pair = pair_of(value, pairs)
        if pair is None:
            total += 1
        elif pair.first.name == value.name:
            total += 2 if pair.kind == "softmax" else 4
    return total


def pair_of(value: Value, pairs: list[OnlinePair]) -> OnlinePair | None:
    """The online pair to which a reduction belongs."""
    return next((pair for pair in pairs if value.name in (pair.first.name, pair.second.name)), None)


def leaves(
    program: RowProgram, walk: Pass, pairs: list[OnlinePair], stop: set[str], everything: bool = False
) -> set[str]:
    """Names of the operands that the element loop of a pass reads, and of values in `stop`. With `everything` row
    values count as element values (flat kernels have no row to evaluate them for)."""
    by_name = {value.name: value for value in program.values}
    found: set[str] = set()
    pending = roots(walk, pairs)
    seen: set[str] = set()
    operands = {operand.name for operand in program.operands}
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in stop or name in operands:
            found.add(name)
        elif name in by_name and (everything or by_name[name].space == "element"):
            pending.extend(use.name for use in by_name[name].arguments if isinstance(use, Use))
    return found


def roots(walk: Pass, pairs: list[OnlinePair]) -> list[str]:
    """The values that a pass is walked for."""
    names = [output.value for output in walk.outputs if output.space == "element"]
    for value in walk.reductions:
        pair = pair_of(value, pairs)
        if pair is not None:
            names.append(pair.argument)
        elif isinstance(value.arguments[0], Use):
            names.append(value.arguments[0].name)
    return names


def _aligned(offset: int) -> int:
    return -(-offset // 16) * 16


def _team(plan: Plan) -> tuple[int, int, int]:
    if plan.mapping == "thread-row":
        return 1, 1, plan.threads
    if plan.mapping == "warp-row":
        return 32, 1, plan.threads // 32
    if plan.mapping == "cluster-row":
        return plan.threads, plan.cluster_size, 1
    return plan.threads, plan.splits if plan.mapping == "split-row" else 1, 1


def _pairs(program: RowProgram, plan: Plan) -> list[OnlinePair]:
    if plan.passes != "online":
        return []
    pairs = online_pairs(program)
    if not pairs:
        raise PlanDoesNotFit("no two reductions of this operator can be computed by one walk with running statistics")
    for pair in pairs:
        if f"online_{pair.kind}" not in plan.blocks:
            raise PlanDoesNotFit(f"the plan has no block for running {pair.kind} statistics")
    return pairs


def _full(program: RowProgram, names: set[str]) -> list[Operand]:
    return [item for item in program.operands if item.name in names and item.is_full(program.rows)]


def _staged(program: RowProgram, plan: Plan, walks: list[Pass]) -> list[Staged]:
    """What to keep: the full operands that a later pass reads, or one value of the first pass that stands for several
    of them."""
    pairs = _pairs(program, plan)
    walking = [walk for walk in walks if walk.reductions or writes_elements(walk)]
    if plan.staging == "none" or len(walking) < 2:
        return []
    wanted: set[str] = set()
    for walk in walking[1:]:
        wanted |= leaves(program, walk, pairs, set())
    wanted &= leaves(program, walking[0], pairs, set())
    operands = _full(program, wanted)
    if len(operands) > 1 and "fused" in plan.blocks and "arrival" not in plan.blocks:
        value = _bottleneck(program, walking, pairs)
        if value is not None:
            arithmetic: DType = "float64" if "float64" in storage_of(program) else "float32"
            return [Staged(name=value, dtype=arithmetic, operand=False)]
    return [Staged(name=item.name, dtype=item.dtype, operand=True) for item in operands]


def _bottleneck(program: RowProgram, walking: list[Pass], pairs: list[OnlinePair]) -> str | None:
    """The first element value of the first pass behind which the later passes read no full operand."""
    by_name = {value.name: value for value in program.values}
    computed = _behind(by_name, roots(walking[0], pairs))
    for value in program.values:
        if value.name not in computed or value.op in REDUCTIONS:
            continue
        later = [leaves(program, walk, pairs, {value.name}) for walk in walking[1:]]
        if all(value.name in names and not _full(program, names) for names in later):
            return value.name
    return None


def _behind(by_name: dict[str, Value], names: list[str]) -> set[str]:
    pending = [name for name in names if name in by_name]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in seen and by_name[name].space == "element":
            seen.add(name)
            pending.extend(use.name for use in by_name[name].arguments if isinstance(use, Use) and use.name in by_name)
    return seen


def _check(program: RowProgram, plan: Plan) -> None:
    if plan.vector_width & (plan.vector_width - 1):
        raise PlanDoesNotFit(f"a vector width of {plan.vector_width} is no power of two")
    if program.reductions and plan.mapping == "flat":
        raise PlanDoesNotFit("an operator that reduces rows has no flat mapping")
    if plan.mapping != "flat" and program.columns >= 2**31 - 64:
        raise PlanDoesNotFit(f"rows of {program.columns} elements exceed 32-bit column indices")
    if plan.threads % 32 and plan.mapping != "flat":
        raise PlanDoesNotFit(f"{plan.threads} threads are no whole number of warps")
    if plan.mapping not in ("flat", "block-row") and "mapping" not in plan.blocks:
        raise PlanDoesNotFit(f"the plan maps by {plan.mapping} but holds no strategy's block for it")
    if plan.mapping == "split-row" and not program.reductions:
        raise PlanDoesNotFit("rows are split for the sake of reductions, and this operator has none")
    if plan.staging != "none" and plan.mapping == "split-row":
        raise PlanDoesNotFit("a row that is split among kernels cannot stay on the chip between them")
    if "arrival" in plan.blocks and plan.staging != "shared":
        raise PlanDoesNotFit("asynchronous copies need rows staged in shared memory")


def _check_room(layout: Layout) -> None:
    plan = layout.plan
    if layout.shared_bytes > SHARED_LIMIT:
        raise PlanDoesNotFit(f"{layout.shared_bytes} bytes of shared memory exceed the {SHARED_LIMIT} of a block")
    if plan.staging != "none" and not layout.staged:
        raise PlanDoesNotFit("no pass reads again what an earlier one has read: there is nothing to stage")
    if plan.staging != "none" and not {"staging", "mapping"} & set(plan.blocks):
        raise PlanDoesNotFit("the plan keeps rows on the chip, but no block on its path says where")
    if plan.staging == "registers":
        kept = sum(-(-SIZES[item.dtype] * plan.vector_width // 4) for item in layout.staged) * layout.slots
        room = min(REGISTER_FILE // plan.threads, 255) - OTHER_REGISTERS
        if kept > room:
            raise PlanDoesNotFit(f"a row takes {kept} registers of each thread, and {room} are free")
    if "arrival" in plan.blocks:
        for item in layout.staged:
            if SIZES[item.dtype] * plan.vector_width not in (4, 8, 16, 32):
                raise PlanDoesNotFit("asynchronous copies move 4, 8 or 16 bytes: choose another vector width")
