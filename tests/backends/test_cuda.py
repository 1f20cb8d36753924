"""NVRTC builds for real, with a GPU or without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from htam_agent.backends import measure_cuda, nvml, probe_cuda
from htam_agent.backends.base import Backend, DefaultLimits, binary_name
from htam_agent.backends.cache import SOURCE_REFUSED
from htam_agent.backends.cuda import CudaBackend
from htam_agent.errors import BackendUnavailable, SettingsError
from htam_agent.verdict import KernelResources, Launch

building = CudaBackend().can_build()
pytestmark = pytest.mark.skipif(not building.ok, reason=f"NVRTC: {building.reason} {building.remedy}")

GOOD = """
extern "C" __global__ void scale(float* y, const float* x, int n) {
  __shared__ float held[128];
  held[threadIdx.x % 128] = x[0];
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i] + held[i % 128];
}
extern "C" __global__ void plain(float* y) { y[threadIdx.x] = 1.0f; }
"""


@pytest.fixture
def backend() -> CudaBackend:
    return CudaBackend("sm_90")


def test_a_good_source_gives_a_cubin_for_the_target_and_the_kernels_facts(backend: CudaBackend, tmp_path: Path) -> None:
    result = backend.build(GOOD, tmp_path, DefaultLimits())
    assert result.ok, result.log
    assert Path(result.binary) == tmp_path / binary_name(GOOD, "sm_90")
    assert Path(result.binary).read_bytes()[:4] == b"\x7fELF"
    assert [kernel.name for kernel in result.kernels] == ["scale", "plain"]
    scale, plain = result.kernels
    assert scale.static_shared_bytes == 512
    assert plain.static_shared_bytes == 0
    assert all(kernel.registers and kernel.registers > 0 and kernel.spill_bytes == 0 for kernel in result.kernels)
    assert result.log == ""


def test_spills_are_reported(backend: CudaBackend, tmp_path: Path) -> None:
    # Two hundred values of each thread are alive at once, and a block of 1024 threads leaves 64 registers to each.
    unrolled = "\n#pragma unroll\nfor (int i = 0; i < 200; i++)"
    body = (
        f"float a[200]; {unrolled} a[i] = x[i * n + threadIdx.x];\n"
        f"for (int j = 0; j < n; j++) {{ float t = a[0]; {unrolled} a[i] = (i < 199 ? a[i + 1] : t) * x[j] + t; }}\n"
        f"float s = 0; {unrolled} s += a[i];\nx[threadIdx.x] = s;"
    )
    source = f'extern "C" __global__ void __launch_bounds__(1024) k(float* x, int n) {{ {body} }}'
    result = backend.build(source, tmp_path, DefaultLimits())
    assert result.ok, result.log
    assert result.kernels[0].registers is not None
    assert result.kernels[0].registers <= 64
    assert result.kernels[0].spill_bytes is not None
    assert result.kernels[0].spill_bytes > 0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('extern "C" __global__ void k(float* x) { x[0] = missing; }', 'identifier "missing" is undefined'),
        ('extern "C" __global__ void k(float* x) { asm volatile("not.an.instruction;"); }', "ptxas"),
        (
            'extern "C" __global__ void k(float* x) { __shared__ float s[99999]; s[0] = x[0]; x[1] = s[x[2] > 0]; }',
            "shared",
        ),
        ("#include <no_such_header.h>", "no_such_header.h"),
    ],
)
def test_a_refused_source_is_a_value_with_the_compilers_words(
    backend: CudaBackend, tmp_path: Path, source: str, said: str
) -> None:
    result = backend.build(source, tmp_path, DefaultLimits())
    assert not result.ok
    assert result.reason == SOURCE_REFUSED
    assert said in result.log
    assert list(tmp_path.iterdir()) == []


def test_a_warm_build_of_a_small_kernel_takes_a_fraction_of_a_second(backend: CudaBackend, tmp_path: Path) -> None:
    backend.build(GOOD, tmp_path, DefaultLimits())
    # The best of three, and generous: other work shares the machine.
    assert min(backend.build(GOOD, tmp_path, DefaultLimits()).seconds for _ in range(3)) < 0.3


def test_the_architecture_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HTAM_CUDA_ARCH", "sm_80")
    backend = CudaBackend()
    assert backend.target() == "sm_80"
    assert Path(backend.build(GOOD, tmp_path, DefaultLimits()).binary).name == binary_name(GOOD, "sm_80")
    assert backend.build_key(GOOD) != CudaBackend("sm_90").build_key(GOOD)
    monkeypatch.setenv("HTAM_CUDA_ARCH", "hopper")
    with pytest.raises(SettingsError, match="HTAM_CUDA_ARCH"):
        CudaBackend().target()


def test_a_forked_builder_works_after_preload(tmp_path: Path) -> None:
    """As the harness does it: preload in the parent, build in a child."""
    code = f"""
import os, sys
from pathlib import Path
from htam_agent.backends.base import DefaultLimits
from htam_agent.backends.cuda import CudaBackend, preload
preload()
assert "libcuda.so" not in Path("/proc/self/maps").read_text(), "CUDA was loaded"
children = []
for index in range(2):
    child = os.fork()
    if child == 0:
        result = CudaBackend("sm_90").build({GOOD!r}, Path({str(tmp_path)!r}) / str(index), DefaultLimits())
        os._exit(0 if result.ok else 1)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert result.stdout.strip() == "[0, 0]", result.stderr


def test_without_a_device_the_reason_and_a_remedy_are_given(backend: CudaBackend) -> None:
    answer = backend.available()
    if answer.ok:
        pytest.skip("this machine has a CUDA device")
    assert answer.reason
    assert "cpp" in answer.remedy or "nvidia-smi" in answer.remedy
    with pytest.raises(BackendUnavailable):
        backend.device_facts()


def test_the_probes_child_says_why_it_fails() -> None:
    """Without a driver the child's answer is an error object, never a traceback."""
    if any(Path("/dev", name).exists() for name in probe_cuda.DEVICE_FILES):
        pytest.skip("this machine has an NVIDIA device file")
    result = subprocess.run(
        [sys.executable, "-I", "-c", probe_cuda.CHILD, "0"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert '"error"' in result.stdout


def test_the_programs_that_measure_build(backend: CudaBackend, tmp_path: Path) -> None:
    result = backend.build(measure_cuda.SOURCE, tmp_path, DefaultLimits())
    assert result.ok, result.log
    assert {kernel.name for kernel in result.kernels} == {"copy", "multiply_add", "empty"}
    multiply_add = next(kernel for kernel in result.kernels if kernel.name == "multiply_add")
    assert multiply_add.registers is not None
    assert multiply_add.registers >= measure_cuda.CHAINS, "the chains were optimised away"
    compile(measure_cuda.CHILD, "measure", "exec")


def test_it_is_a_backend_with_occupancy(backend: CudaBackend) -> None:
    assert isinstance(backend, Backend)
    kernel = KernelResources(name="k", registers=32, spill_bytes=0, static_shared_bytes=0)
    full = backend.occupancy(kernel, Launch(kernel="k", grid=(132, 1, 1), block=(256, 1, 1)))
    assert full is not None
    assert full.fraction == 1.0
    assert backend.occupancy(KernelResources(name="k"), Launch(kernel="k", grid=(1, 1, 1), block=(32, 1, 1))) is None


@pytest.mark.gpu
def test_the_device_is_described_and_measured(tmp_path: Path) -> None:
    backend = CudaBackend()
    answer = backend.available()
    if not answer.ok:
        pytest.skip(answer.reason)
    facts = backend.device_facts()
    assert facts.architecture == backend.target()
    assert facts.threads > 0
    ceilings = measure_cuda.measure(facts, 0)
    theoretical = nvml.dram_bytes_per_second(0)
    assert 0.4 * theoretical < ceilings.copy_bytes_per_second < theoretical
    assert ceilings.fp32_operations_per_second > 1e12
    assert 1e-7 < ceilings.launch_seconds < 1e-4
