"""The CUDA side of the template coder: what the skeletons cuda*.cu.j2 and the candidate file are rendered from.

The skeletons hold plain loops. Every optimisation stands in a strategy's block, which is placed into the slot that the
plan names, or follows from a plan field that a strategy has set. Slots, and what a block defines there:

- `access`: load_pack and store_pack, how one pack of WIDTH elements is moved;
- `cache`: read_last and write, the cache hints of data without a future;
- `math`, `division`, `maximum`: functions op_<name>(real ...) in place of the plain ones;
- `mapping`: struct Team, who works on a row (it may define Kept too); `order`: block_index, the order of the blocks;
- `combine`: combine_block, a reduction over the threads of a block;
- `staging`: struct Kept, where a row waits between passes; `fused`: the type Fused, and that a value is kept in place
  of several inputs;
- `arrival`: copy_pack and copy_wait, asynchronous copies into shared memory; `ahead`: prefetch_line;
- `walk`: the loop over a thread's packs; `whole`: all_whole, when to take the path without checks (tail `peel` only);
- `online_softmax`, `online_moments`: running statistics (passes `online`);
- `bounds`: the launch bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from htam_agent.coding import cuda_text
from htam_agent.coding.cuda_expressions import SIZES, STORAGE, WRAPPERS, conversions, functions
from htam_agent.coding.cuda_layout import Layout, PlanDoesNotFit, layout_of, storage_of
from htam_agent.coding.plan import Plan
from htam_agent.coding.program import Op, RowProgram
from htam_agent.coding.sizes import sizes_of
from htam_agent.words import Backend, Record

SLOTS = (
    "access", "cache", "math", "division", "maximum", "mapping", "order", "combine", "staging", "fused", "arrival",
    "ahead", "walk", "whole", "online_softmax", "online_moments", "bounds",
)  # fmt: skip
INT_ELEMENTS = 2**31 - 2**24
"""Flat kernels count in 32 bits below this number of elements; the rest is room for the last tile."""
RESIDENT_SHARED, RESERVED_SHARED, RESIDENT_THREADS = 233472, 1024, 2048
"""Shared memory of a multiprocessor of compute capability 9.0 and what the system takes of it for each block (bytes);
threads that a multiprocessor holds (CUDA C++ Programming Guide, technical specifications per compute capability)."""
LAUNCHER = Path(__file__).parent / "launchers" / "cuda.py"


class KernelLaunch(Record):
    """How one kernel is launched. The number of units is that of the rows, or of the packs of a flat kernel.

    blocks = ceil(units / units_per_block) * blocks_per_unit, at most what is resident at once where `persistent`.
    """

    name: str
    threads: int
    units: Literal["rows", "packs"]
    units_per_block: int
    blocks_per_unit: int
    shared_bytes: int
    cluster: int
    persistent: bool


class CudaRenderer:
    """Implements Renderer for backend "cuda"."""

    backend: Backend = "cuda"
    skeleton = "cuda.cu.j2"
    candidate = "candidate_cuda.py.j2"

    def default_plan(self, program: RowProgram) -> Plan:
        """Plain loops: a thread for each element where nothing is reduced, else a block for each row."""
        return Plan(backend="cuda", mapping="block-row" if program.reductions else "flat", threads=256)

    def refusal(self, program: RowProgram, plan: Plan) -> str:
        """See Renderer."""
        unknown = sorted(set(plan.blocks) - set(SLOTS))
        if unknown:
            return f"the CUDA skeletons have no slot {unknown[0]!r} (strategy {plan.blocks[unknown[0]]})"
        try:
            layout_of(program, plan)
        except PlanDoesNotFit as error:
            return str(error)
        return ""

    def context(self, program: RowProgram, plan: Plan) -> Mapping[str, object]:
        """See Renderer and the module's docstring.

        Raises PlanDoesNotFit for a plan that `refusal` refuses.
        """
        layout = layout_of(program, plan)
        facts = {**_facts(layout), **_candidate_facts(layout)}
        return facts if plan.mapping == "flat" else {**facts, **_row_facts(layout)}


def launches_of(layout: Layout) -> list[KernelLaunch]:
    """The launches of one call, in order. Arguments of every kernel: operands, outputs, the workspace of split rows,
    and the number of rows (flat: of elements) as a 64-bit integer."""
    plan = layout.plan
    flat = plan.mapping == "flat"
    return [
        KernelLaunch(
            name=name,
            threads=plan.threads,
            units="packs" if flat else "rows",
            units_per_block=plan.threads * layout.slots if flat else layout.teams * plan.rows_per_block,
            blocks_per_unit=layout.slices,
            shared_bytes=layout.shared_bytes,
            cluster=plan.cluster_size if plan.mapping == "cluster-row" else 1,
            persistent=plan.persistent and plan.mapping != "split-row",
        )
        for name, _, _ in _kernels(layout)
    ]


def _facts(layout: Layout) -> dict[str, object]:
    """What both skeletons are rendered from."""
    program, plan = layout.program, layout.plan
    dtypes = storage_of(program)
    used: set[Op] = {value.op for value in program.values} | {"maximum", "minimum", "exp"}
    return {
        "real": "double" if layout.double else "float",
        "index": "int" if plan.mapping != "flat" or _counts_in_int(program) else "long long",
        "edges": layout.edges,
        "storage_types": [WRAPPERS[dtype] for dtype in dtypes if dtype in WRAPPERS],
        "needs_conversions": bool({"float16", "bfloat16"} & set(dtypes)),
        "conversions": conversions(dtypes),
        "functions": functions(used, layout.double),
        "slots_of_thread": layout.slots,
        "bounds": _bounds(layout),
        "parameters": cuda_text.parameters(layout),
        "row_operands": cuda_text.row_operands(layout),
        "passes": [cuda_text.pass_text(layout, index) for index in range(len(layout.walks))],
        "general": sizes_of(program).generality != "fixed",
        "elements": program.rows * program.columns,
    }


def _row_facts(layout: Layout) -> dict[str, object]:
    """What the skeleton of row kernels needs besides."""
    plan = layout.plan
    value_type = "Fused" if "fused" in plan.blocks else "real"
    arrives = "arrival" in plan.blocks and bool(layout.staged)
    return {
        "columns": layout.program.columns,
        "exchange_offset": layout.exchange_offset,
        "half_of_threads": (1 << (plan.threads - 1).bit_length()) // 2,
        "staged": layout.staged,
        "kept_declarations": [
            f"Kept<{kind}, {layout.kept_offsets[item.name]}> kept_{item.name};"
            for item in layout.staged
            for kind in [STORAGE[item.dtype] if item.operand else value_type]
        ],
        "row_pointers": cuda_text.row_pointers(layout),
        "row_outputs": cuda_text.row_outputs(layout),
        "request": cuda_text.request(layout) if arrives else "",
        "arrives": arrives,
        "next_row": plan.persistent and (arrives or "ahead" in plan.blocks),
        "split": plan.mapping == "split-row",
        "cluster_attribute": f"__cluster_dims__({plan.cluster_size}, 1, 1) " if plan.mapping == "cluster-row" else "",
        "kernels": [{"name": name, "level": level, "final": final} for name, level, final in _kernels(layout)],
    }


def _candidate_facts(layout: Layout) -> dict[str, object]:
    """What the candidate file needs to launch the kernels."""
    program, plan = layout.program, layout.plan
    return {
        "launcher_body": _launcher(),
        "launches": launches_of(layout),
        "width": plan.vector_width,
        "alignment": max(min(16, SIZES[dtype] * plan.vector_width) for dtype in storage_of(program)),
        "workspace_numbers": sum(layout.state_words) * layout.slices if plan.mapping == "split-row" else 0,
        "most_elements": INT_ELEMENTS if plan.mapping == "flat" and _counts_in_int(program) else 0,
    }


def _bounds(layout: Layout) -> str:
    """Launch bounds. Where shared memory lets few blocks be resident, the compiler may use the registers that no other
    block can (left alone it aims at as many threads as the multiprocessor holds)."""
    resident = RESIDENT_SHARED // (layout.shared_bytes + RESERVED_SHARED)
    threads = layout.plan.threads
    return f"THREADS, {max(1, resident)}" if resident * threads < RESIDENT_THREADS else "THREADS"


def _kernels(layout: Layout) -> list[tuple[str, int, bool]]:
    """(name, passes before the kernel's own, whether it is the last)."""
    last = len(layout.walks) - 1
    if layout.plan.mapping == "flat":
        return [("htam_flat", 0, True)]
    if layout.plan.mapping != "split-row":
        return [("htam_rows", last, True)]
    return [(f"htam_level_{level}", level, False) for level in range(last)] + [("htam_last", last, True)]


def _counts_in_int(program: RowProgram) -> bool:
    return program.rows * program.columns < INT_ELEMENTS


@cache
def _launcher() -> str:
    """The launcher without its docstring and imports, which the candidate file has itself."""
    text = LAUNCHER.read_text(encoding="utf-8")
    return text[text.index("Size = ") :].strip()
