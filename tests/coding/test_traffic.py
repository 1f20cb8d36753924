"""What a plan moves: passes, staging, and caches, against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from htam_agent.coding.lowering import lower
from htam_agent.coding.plan import Plan
from htam_agent.coding.program import RowProgram
from htam_agent.coding.traffic import moved_bytes
from htam_agent.operator import OperatorProfile
from htam_agent.tools.traffic import with_traffic
from htam_agent.tracing import trace_model
from htam_agent.verdict import Ceilings, DeviceFacts, ProfileResult

GPU = DeviceFacts(
    backend="cuda", name="a GPU", architecture="sm_90", threads=132, libraries={"l2-bytes": str(60 << 20)}
)  # fmt: skip
ROWS, COLUMNS = 512, 1 << 18
TENSOR = 4 * ROWS * COLUMNS


class Softmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


def traced(rows: int, columns: int) -> tuple[OperatorProfile, RowProgram]:
    profile = trace_model(Softmax(), [torch.empty(rows, columns, device="meta")], "softmax")
    return profile, lower(profile)


@pytest.mark.parametrize(
    ("changes", "reads"),
    [
        ({}, 3),
        ({"passes": "online"}, 2),
        ({"mapping": "cluster-row", "cluster_size": 8, "staging": "shared"}, 1),
        ({"mapping": "cluster-row", "cluster_size": 16, "threads": 1024}, 1),  # 16 rows of 1 MB stay in L2
        ({"mapping": "cluster-row", "cluster_size": 2, "threads": 256}, 3),  # 528 rows do not
        ({"mapping": "split-row"}, 3),
    ],
)
def test_softmax_reads_its_rows_once_for_each_pass_unless_they_wait(changes: dict[str, object], reads: int) -> None:
    plan = Plan.model_validate({"backend": "cuda", **changes})
    assert moved_bytes(traced(ROWS, COLUMNS)[1], plan, GPU) == (reads + 1) * TENSOR


def test_short_rows_are_read_again_from_cache() -> None:
    assert moved_bytes(traced(4096, 64)[1], Plan(backend="cuda"), GPU) == 2 * 4 * 4096 * 64


def test_a_kernel_that_moves_its_rows_several_times_is_bound_by_memory() -> None:
    operator, program = traced(ROWS, COLUMNS)
    moved = moved_bytes(program, Plan(backend="cuda"), GPU)
    ceilings = Ceilings(copy_bytes_per_second=4e12, fp32_operations_per_second=6e13)
    waiting = ProfileResult(bottleneck="latency", diagnosis="It waits.")
    at_the_copy_rate = 1e3 * moved / 4e12
    assert with_traffic(waiting, moved, operator, ceilings, at_the_copy_rate).bottleneck == "memory"
    assert "2.00 times" in with_traffic(waiting, moved, operator, ceilings, at_the_copy_rate).diagnosis
    assert with_traffic(waiting, moved, operator, ceilings, 4 * at_the_copy_rate) == waiting
    assert with_traffic(waiting, operator.unavoidable_bytes, operator, ceilings, at_the_copy_rate) == waiting
