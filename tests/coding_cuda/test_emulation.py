"""The emulated device finds what it is for: divergence, missing barriers, accesses out of bounds."""

from __future__ import annotations

import ctypes

import pytest
import torch

from tests.coding_cuda.emulation import EmulatedKernels, EmulationError

HEAD = """
#ifndef HTAM_SHARED_MEMORY
extern __shared__ unsigned char shared_memory[];
#endif
"""


def _run(body: str, tensors: list[torch.Tensor], order: int = 0, at_end: bool = True, **launch: int) -> EmulatedKernels:
    source = f'{HEAD}extern "C" __global__ void probe(const float* x, float* y, int n) {{ {body} }}'
    kernels = EmulatedKernels(source, order, at_end)
    grid, threads = launch.get("grid", 1), launch.get("threads", 64)
    arguments = [*tensors, ctypes.c_int(tensors[0].numel())]
    kernels.launch(
        "probe", (grid, 1, 1), (threads, 1, 1), arguments, launch.get("shared", 1024), launch.get("cluster", 1)
    )
    return kernels


def _pair(size: int = 64) -> list[torch.Tensor]:
    return [torch.arange(size, dtype=torch.float32), torch.zeros(size)]


def test_reversal_through_shared_memory() -> None:
    tensors = _pair()
    kernels = _run(
        "float* s = (float*)shared_memory; s[threadIdx.x] = x[threadIdx.x]; __syncthreads();"
        "y[threadIdx.x] = s[63 - threadIdx.x];",
        tensors,
    )
    assert torch.equal(tensors[1], tensors[0].flip(0))
    assert kernels.barriers == 1


def test_a_missing_barrier_shows_in_the_order_of_threads() -> None:
    """Without the barrier some order of the threads reads what is not written yet."""
    answers = []
    for order in (0, 1, 2):
        tensors = _pair()
        _run(
            "float* s = (float*)shared_memory; s[threadIdx.x] = x[threadIdx.x]; y[threadIdx.x] = s[63 - threadIdx.x];",
            tensors,
            order,
        )
        answers.append(torch.equal(tensors[1], tensors[0].flip(0)))
    assert not all(answers)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("if (threadIdx.x < 32) __syncthreads();", "divergence"),
        ("if (threadIdx.x % 2) __syncthreads();\nelse\n__syncthreads();", "divergence"),
        ("if (threadIdx.x == 0) return; y[0] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);", "divergence"),
        ("if (threadIdx.x < 32) cluster_wait();", "divergence"),
        ("y[n + threadIdx.x] = 1.0f;", "out of bounds"),
        ("y[0] = x[n];", "out of bounds"),
        ("((float*)shared_memory)[256 + threadIdx.x] = 1.0f;", "out of bounds"),
        ("((uint4*)(y + 1))[0] = ((const uint4*)x)[0];", "misaligned"),
        ("((uint2*)(y + 1))[0] = ((const uint2*)x)[0];", "misaligned"),
    ],
)
def test_faults_are_reported(body: str, words: str) -> None:
    with pytest.raises(EmulationError, match=words):
        _run(body, _pair())


def test_reads_before_the_start_are_reported() -> None:
    with pytest.raises(EmulationError, match="out of bounds"):
        _run("y[threadIdx.x] = x[(int)threadIdx.x - 1];", _pair(1024), at_end=False)


def test_a_fault_leaves_the_emulation_usable() -> None:
    with pytest.raises(EmulationError):
        _run("y[n] = 1.0f;", _pair())
    tensors = _pair()
    _run("y[threadIdx.x] = x[threadIdx.x];", tensors)
    assert torch.equal(*tensors)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_warp_sum(order: int) -> None:
    tensors = _pair()
    _run(
        "float v = x[threadIdx.x]; for (int o = 16; o; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);"
        "y[threadIdx.x] = v;",
        tensors,
        order,
    )
    assert torch.equal(tensors[1], tensors[0].view(2, 32).sum(1, keepdim=True).expand(2, 32).reshape(-1))


@pytest.mark.parametrize("order", [0, 1, 2])
def test_cluster_exchange(order: int) -> None:
    """Each block of a cluster of four hands its rank to all others; clusters do not mix."""
    tensors = [torch.zeros(8), torch.zeros(8 * 4)]
    kernels = _run(
        "unsigned* s = (unsigned*)shared_memory; cluster_wait();"
        "if (threadIdx.x < 4) cluster_put(s + cluster_rank(), threadIdx.x, 10 + blockIdx.x);"
        "cluster_wait(); if (threadIdx.x < 4) y[blockIdx.x * 4 + threadIdx.x] = s[threadIdx.x];",
        tensors, order, grid=8, threads=32, cluster=4,
    )  # fmt: skip
    expected = torch.tensor([[10.0, 11, 12, 13]] * 4 + [[14.0, 15, 16, 17]] * 4).reshape(-1)
    assert torch.equal(tensors[1], expected)
    assert kernels.cluster_barriers == 4  # two in each of two clusters


def test_a_copy_arrives_at_the_wait_and_not_before() -> None:
    tensors = _pair()
    _run(
        "float* s = (float*)shared_memory; copy_async<4>(s + threadIdx.x, x + threadIdx.x);"
        "float early = s[threadIdx.x]; copy_wait(); y[threadIdx.x] = early != early ? s[threadIdx.x] : -1.0f;",
        tensors,
    )
    assert torch.equal(*tensors)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_conversions_round_as_torch_does(kind: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.cat([
        torch.randn(500, generator=generator) * 10.0 ** torch.randint(-8, 5, (500,), generator=generator),
        torch.tensor([0.0, -0.0, float("inf"), float("-inf"), 65519.0, 65520.0, 6e-8, 2.9e-8, 1.0009765625, 3.4e38]),
    ])  # fmt: skip
    y = torch.zeros_like(x)
    name = "half" if kind is torch.float16 else "bfloat"
    _run(f"for (int i = 0; i < n; ++i) y[i] = {name}_to_float(float_to_{name}(x[i]));", [x, y], threads=1)
    assert torch.equal(y, x.to(kind).float())
