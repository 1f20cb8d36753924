"""Diagnosis: stated rules on known cases, and what must hold for any kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.operator import Node, OperatorProfile, TensorInfo
from htam_agent.tools.diagnose import diagnose, floor_ms, fractions_of_floor
from htam_agent.verdict import (
    BothSides,
    CacheCeiling,
    Ceilings,
    DeviceFacts,
    KernelCounters,
    KernelResources,
    Launch,
    RunResult,
    Times,
)

GPU = DeviceFacts(backend="cuda", name="NVIDIA H200", architecture="sm_90", threads=132)
CPU = DeviceFacts(backend="cpp", name="a processor", architecture="x86_64", threads=2)
GPU_CEILINGS = Ceilings(copy_bytes_per_second=4.2e12, fp32_operations_per_second=6e13, launch_seconds=2e-6)


def operator(
    size: int = 1 << 30,
    operations: int = 1 << 28,
    operators: tuple[str, ...] = ("aten.relu",),
    exponentials: int = 0,
) -> OperatorProfile:
    tensor = TensorInfo(name="x", shape=(size // 8,), dtype="float32")
    nodes = []
    if exponentials:
        output = TensorInfo(name="y", shape=(exponentials,), dtype="float32")
        nodes.append(Node(name="exp", kind="call", target="aten.exp.default", outputs=[output]))
    return OperatorProfile(
        name="op", operator_class="pointwise", operators=list(operators), inputs=[tensor], parameters=[],
        outputs=[tensor], unavoidable_bytes=size, operations=operations, nodes=nodes,
    )  # fmt: skip


def test_near_the_copy_rate_it_is_memory() -> None:
    found = diagnose(operator(), Times(candidate=0.3), GPU_CEILINGS, GPU)
    assert found.bottleneck == "memory"
    assert found.floor_ms == pytest.approx((1 << 30) / 4.2e12 * 1e3 + 0.002)
    assert found.fraction_of_floor == pytest.approx(found.floor_ms / 0.3)
    assert "memory" in found.diagnosis


def test_far_from_both_it_is_latency_and_the_cause_is_named() -> None:
    kernel = KernelResources(name="k", registers=128, spill_bytes=64, static_shared_bytes=0)
    launch = Launch(kernel="k", grid=(16, 1, 1), block=(256, 1, 1), dynamic_shared_bytes=1024)
    found = diagnose(operator(), Times(candidate=3.0), GPU_CEILINGS, GPU, [kernel], [launch])
    assert found.bottleneck == "latency"
    assert found.occupancy == 0.25
    assert found.limited_by == "registers"
    assert found.shared_bytes == 1024
    for said in ("16 blocks for 132 multiprocessors", "25%", "registers", "64 bytes"):
        assert said in found.diagnosis


def test_a_tiny_operator_is_bound_by_launches() -> None:
    launches = [Launch(kernel="k", grid=(1, 1, 1), block=(32, 1, 1))] * 3
    found = diagnose(operator(size=1024, operations=128), Times(candidate=0.008), GPU_CEILINGS, GPU, [], launches)
    assert found.bottleneck == "launch"
    assert "3 launches" in found.diagnosis


def test_exponentials_count_more_than_additions() -> None:
    ceilings = Ceilings(copy_bytes_per_second=2e10, fp32_operations_per_second=1e11)
    size = 64 << 20
    elements = size // 8
    plain = operator(size, elements)
    heavy = operator(size, elements, exponentials=elements)
    milliseconds = 4.5e0
    assert diagnose(plain, Times(candidate=milliseconds), ceilings, CPU).bottleneck == "memory"
    assert diagnose(heavy, Times(candidate=4.5), ceilings, CPU).bottleneck == "memory"
    slower = Times(candidate=milliseconds)
    wide = ceilings.model_copy(update={"copy_bytes_per_second": 2e11})
    assert diagnose(plain, slower, wide, CPU).bottleneck == "latency"
    assert diagnose(heavy, slower, wide, CPU).bottleneck == "compute"


def test_without_a_time_nothing_is_claimed() -> None:
    found = diagnose(operator(), Times(), GPU_CEILINGS, GPU)
    assert found.bottleneck == "unknown"
    assert found.fraction_of_floor == 0.0
    assert found.floor_ms > 0


def test_data_in_the_cache_are_held_against_the_cache() -> None:
    ceilings = Ceilings(
        copy_bytes_per_second=2e10,
        fp32_operations_per_second=1e12,
        caches=[CacheCeiling(bytes=8 << 20, copy_bytes_per_second=1.5e11)],
    )
    small = operator(size=4 << 20, operations=1 << 10)
    # Faster than memory could deliver it, and still far from the cache's rate: not at the floor.
    found = diagnose(small, Times(candidate=0.1), ceilings, CPU)
    assert found.fraction_of_floor < 0.5
    assert "cache" in found.diagnosis


def test_operations_of_a_matrix_product_are_no_floor_on_a_gpu() -> None:
    product = operator(size=1 << 20, operations=1 << 40, operators=("aten.addmm", "aten.relu"))
    assert floor_ms(product, GPU_CEILINGS, "cuda") < 0.01
    assert floor_ms(product, GPU_CEILINGS, "cpp") > 1.0


@given(
    st.integers(1, 1 << 34),
    st.integers(0, 1 << 40),
    st.floats(1e-4, 1e4),
    st.floats(1e9, 1e13),
    st.floats(1e9, 1e15),
    st.sampled_from([GPU, CPU]),
)
def test_any_kernel_has_a_consistent_profile(
    size: int, operations: int, milliseconds: float, copy: float, rate: float, device: DeviceFacts
) -> None:
    ceilings = Ceilings(copy_bytes_per_second=copy, fp32_operations_per_second=rate, launch_seconds=1e-6)
    found = diagnose(operator(size, operations), Times(candidate=milliseconds), ceilings, device)
    assert found.floor_ms * 1e-3 >= max(size / copy, operations / rate)
    assert found.fraction_of_floor == pytest.approx(found.floor_ms / milliseconds)
    assert found.achieved_bytes_per_second == pytest.approx(size / milliseconds * 1e3)
    assert found.bottleneck != "unknown"
    assert found.diagnosis.endswith(".")
    slower = diagnose(operator(size, operations), Times(candidate=2 * milliseconds), ceilings, device)
    assert slower.fraction_of_floor < found.fraction_of_floor


PRODUCT_CEILINGS = GPU_CEILINGS.model_copy(
    update={"tf32_operations_per_second": 4e14, "bf16_operations_per_second": 7e14}
)


def test_a_matrix_product_is_held_against_the_rate_of_its_precision() -> None:
    product = operator(size=1 << 26, operations=1 << 40, operators=("aten.addmm", "aten.relu"))
    floors = {name: floor_ms(product, PRODUCT_CEILINGS, "cuda", name) for name in ("ieee", "tf32", "bf16", "fp16")}
    assert floors["ieee"] == pytest.approx((1 << 40) / 6e13 * 1e3 + 0.002)
    assert floors["tf32"] == pytest.approx((1 << 40) / 4e14 * 1e3 + 0.002)
    assert floors["bf16"] == floors["fp16"] < floors["tf32"] < floors["ieee"]
    near = diagnose(product, Times(candidate=3.0, best=4.0), PRODUCT_CEILINGS, GPU, precision="tf32")
    assert near.bottleneck == "compute"
    assert near.tensor_share == pytest.approx((1 << 40) / 4e14 / 3e-3)
    assert "TF32 matrix products" in near.diagnosis
    assert near.fractions.best == pytest.approx(floors["tf32"] / 4.0)
    far = diagnose(product, Times(candidate=30.0), PRODUCT_CEILINGS, GPU, precision="tf32")
    assert far.bottleneck == "latency"
    assert "tensor cores" in far.diagnosis


def test_what_the_run_measured_is_said() -> None:
    run = RunResult(
        verdict="correct",
        stage="time",
        call_ms=BothSides(candidate=0.5, reference=0.6),
        device_ms=BothSides(candidate=0.3, reference=0.4),
        launch_bound=True,
        own_share=0.2,
        counters=[KernelCounters(kernel="k", dram_bytes_read=3.0 * (1 << 30), occupancy_percent=20.0)],
    )
    found = diagnose(operator(), Times(candidate=0.3), GPU_CEILINGS, GPU, run=run)
    assert found.bottleneck == "launch"
    for said in ("the host 0.5 ms", "20% of the time", "3.00 times the unavoidable", "20 % of the warps"):
        assert said in found.diagnosis
    assert found.counters == run.counters
    quiet = diagnose(
        operator(), Times(candidate=0.3), GPU_CEILINGS, GPU, run=RunResult(verdict="correct", stage="time")
    )
    assert quiet.bottleneck == "memory"


def test_fractions_are_null_where_a_side_was_not_timed() -> None:
    found = fractions_of_floor(Times(floor=1.0, candidate=2.0, best=None, eager=4.0))
    assert (found.candidate, found.best, found.eager) == (0.5, None, 0.25)
    assert fractions_of_floor(Times(candidate=2.0)).candidate is None
