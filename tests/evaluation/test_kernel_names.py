"""Whose a GPU kernel is by its name."""

from __future__ import annotations

import pytest

from htam_agent.evaluation.kernel_names import Kernels, Owner, owner_of, plain_name, written_names
from htam_agent.evaluation.messages import KernelTime

NAMES: dict[str, Owner] = {
    "relu": "own",
    "_Z9my_kernelPfi": "own",
    "matmul_relu_kernel(float const*, float const*, float*, int)": "own",
    "softmax_row_kernel": "own",
    "fused_gemm_epilogue": "own",
    "void gemm_tiled<128, 128, 8>(float const*)": "own",
    "void at::native::vectorized_elementwise_kernel<4, at::native::relu_kernel>": "library",
    "void at::native::(anonymous namespace)::softmax_warp_forward<float, float>": "library",
    "void cublasLt::splitKreduce_kernel<32, 16>": "library",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN": "library",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32": "library",
    "ampere_sgemm_128x64_tn": "library",
    "volta_scudnn_128x32_relu_interior_nn_v1": "library",
    "void cudnn::ops::nchwToNhwcKernel<float>": "library",
    "triton_poi_fused_add_relu_0": "library",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>": "library",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256>": "unclear",
    "void cub::DeviceReduceKernel<...>": "unclear",
    "Memcpy DtoD (Device -> Device)": "copy",
    "Memset (Device)": "copy",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>": "copy",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>": "copy",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_say_whose_a_kernel_is(name: str) -> None:
    assert owner_of(name) == NAMES[name]


def test_a_name_in_the_binary_is_the_candidates_own() -> None:
    assert owner_of("ampere_sgemm_mine", own={"ampere_sgemm_mine"}) == "own"


def test_times_add_up_by_owner() -> None:
    kernels = Kernels(
        KernelTime(name=name, microseconds=index) for index, name in enumerate(("a", "nvjet_x", "b", "cub::c"))
    )
    assert [kernels.microseconds(owner) for owner in ("own", "library", "copy", "unclear")] == [2.0, 1.0, 0.0, 3.0]
    assert kernels.named("own") == "b, a"
    assert kernels.share == pytest.approx(5 / 6)
    assert (
        kernels.describe() == "own 2 us (b, a); a library's 1 us (nvjet_x); of CUTLASS or CUB templates 3 us (cub::c)"
    )
    assert Kernels([]).share == 0.0


TEXT = """
namespace { template <int N> __global__ void __launch_bounds__(256) gemv_kernel(const float* x) {} }
extern "C" __global__ __launch_bounds__(128, 2) void splitKreduce_kernel(float* x) {}
static __global__ void
winograd_transform(float* x) {}
@triton.jit
def triton_poi_fused_mine(x): pass
@triton.jit(do_not_specialize=["n"])
def ampere_sgemm_mine(x, n): pass
"""


def test_a_kernel_that_the_file_has_written_is_its_own_whatever_its_name() -> None:
    written = written_names(TEXT)
    names = {"gemv_kernel", "splitKreduce_kernel", "winograd_transform", "triton_poi_fused_mine", "ampere_sgemm_mine"}
    assert written == names
    for name in names:
        assert owner_of(name, written=written) == "own"
        assert owner_of(f"void (anonymous namespace)::{name}<128>(float const*)", written=written) == "own"
        assert owner_of(f"void at::native::{name}<float>(float*)", written=written) == "library"
        assert owner_of(f"void cublasLt::{name}<32>(float*)", written=written) == "library"
    assert owner_of("void gemv2T_kernel_val<int, int, float>(float*)", written=written) == "library"
    assert owner_of("gemvNSP_kernel") == "library"
    assert owner_of("gemv_kernel(float const*, float*, int)") == "own"


@pytest.mark.parametrize(
    "name",
    [
        "_Z11gemv_kernelPKf",
        "_ZN3abc11gemv_kernelILi4EEEvPKf",
        "_ZN12_GLOBAL__N_111gemv_kernelEPf",
        "void abc::gemv_kernel<4>(float const*)",
        "gemv_kernel",
    ],
)
def test_the_name_in_the_source(name: str) -> None:
    assert plain_name(name) == "gemv_kernel"
