"""The candidate file and its launcher: what they refuse, how they find and cache binaries, which sizes they serve."""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

from htam_agent.backends.cuda import CudaBackend
from tests.coding.operators import Function, cases
from tests.coding_cuda.support import Emulated, candidate, imported

PROBE = 'extern "C" __global__ void probe(float* y) { y[threadIdx.x] = 1.0f; }'


@pytest.fixture(scope="module")
def softmax() -> tuple[str, nn.Module]:
    module, inputs = cases(6, 37)["softmax"]
    return candidate(module, inputs, ["cuda-vector-4"]), module


def test_the_file_stands_alone(softmax: tuple[str, nn.Module]) -> None:
    source, _ = softmax
    assert "htam_agent" not in source
    launcher = Path(__file__).parents[2] / "htam_agent" / "coding" / "launchers" / "cuda.py"
    text = launcher.read_text()
    assert len(text[text.index("Size = ") :].splitlines()) < 120
    assert text[text.index("Size = ") :].strip() in source


def test_refusals(softmax: tuple[str, nn.Module]) -> None:
    kernel = Emulated(*softmax)
    with pytest.raises(ValueError, match="shape"):
        kernel(torch.randn(6, 38))
    with pytest.raises(ValueError, match="float32"):
        kernel(torch.randn(6, 37).half())
    with pytest.raises(TypeError, match="arguments"):
        kernel(torch.randn(6, 37), torch.randn(1))
    with pytest.raises(RuntimeError, match="gradient"):
        kernel.model(torch.randn(6, 37, requires_grad=True))
    kernel.file.DEVICE = "cuda"
    with pytest.raises(ValueError, match="on cuda"):
        kernel(torch.randn(6, 37))


def test_other_batch_and_strided_inputs(softmax: tuple[str, nn.Module]) -> None:
    kernel = Emulated(*softmax)
    for x in (torch.randn(13, 37), torch.randn(37, 9).t(), torch.randn(8, 74)[:, ::2]):
        assert torch.allclose(torch.as_tensor(kernel(x)), torch.softmax(x, -1), atol=1e-6)
    assert [launch[1] for launch in kernel.kernels.launches] == [(13, 1, 1), (9, 1, 1), (8, 1, 1)]


def test_misaligned_inputs_are_refused(softmax: tuple[str, nn.Module]) -> None:
    kernel = Emulated(*softmax)
    with pytest.raises(ValueError, match="16 bytes at a time"):
        kernel(torch.randn(6 * 37 + 1)[1:].view(6, 37))


def test_too_many_elements_for_32_bits() -> None:
    module = Function(torch.relu)
    kernel = Emulated(candidate(module, [torch.randn(8, 8)], []), module)
    with pytest.raises(ValueError, match="32 bits"):
        kernel.file._grids(1, 2**31, 0)


def test_large_tensors_count_in_64_bits() -> None:
    source = candidate(Function(torch.relu), [torch.empty(1).expand(65536, 65536)], [])
    assert "typedef long long count_t" in source


def test_persistent_grids_are_bounded() -> None:
    module, inputs = cases(20, 64)["softmax"]
    kernel = Emulated(candidate(module, inputs, ["cuda-cluster-4", "cuda-persistent-grid"], threads=32), module)
    kernel(*inputs)
    assert kernel.kernels.launches[0][1] == (4, 1, 1)


def test_arguments_become_c_values(softmax: tuple[str, nn.Module]) -> None:
    as_c = imported(softmax[0]).as_c
    tensor = torch.zeros(3)
    assert as_c(tensor).value == tensor.data_ptr()
    assert isinstance(as_c(7), ctypes.c_int)
    assert isinstance(as_c(0.5), ctypes.c_float)
    value = ctypes.c_longlong(2**40)
    assert as_c(value) is value
    with pytest.raises(OverflowError, match="c_longlong"):
        as_c(2**31)
    with pytest.raises(TypeError, match="str"):
        as_c("text")
    with pytest.raises(ValueError, match="CUDA tensor"):
        imported(softmax[0]).CudaKernels(PROBE).launch("probe", (1, 1, 1), (32, 1, 1), [tensor])


def test_binary_from_the_harness_is_taken(
    softmax: tuple[str, nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is that under which the CUDA backend leaves its build."""
    name = hashlib.sha256(PROBE.encode() + b"\0" + b"sm_90").hexdigest()[:32] + ".cubin"
    (tmp_path / name).write_bytes(b"from the harness")
    monkeypatch.setenv("HTAM_KERNEL_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert imported(softmax[0]).cubin(PROBE, "sm_90") == b"from the harness"
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(not CudaBackend(architecture="sm_90").can_build().ok, reason="NVRTC is not installed")
def test_the_launcher_compiles_and_caches(
    softmax: tuple[str, nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cubin = imported(softmax[0]).cubin
    binary = cubin(PROBE, "sm_90")
    assert binary[:4] == b"\x7fELF"
    (cached,) = (tmp_path / "htam-kernels").iterdir()
    cached.write_bytes(b"cached")
    assert cubin(PROBE, "sm_90") == b"cached"
    with pytest.raises(RuntimeError, match="nonsense"):
        cubin('extern "C" __global__ void probe() { nonsense; }', "sm_90")
    assert len(list((tmp_path / "htam-kernels").iterdir())) == 1
