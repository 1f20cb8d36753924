"""Binaries without their kernels: real libraries and cubins, and bytes that are neither."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from htam_agent.backends.cuda import CudaBackend, compile_text
from htam_agent.backends.flags import CPP_FLAGS, nvrtc_options
from htam_agent.evaluation.elf import EXECUTABLE, Elf, NotElf
from htam_agent.evaluation.noop import NotEmptied, empty_cubin, empty_library, nothing_code

LIBRARY = """
#include <map>
#include <string>
static std::map<std::string, int> table{{"a", 1}};
namespace deep { float twice(float value) { return 2 * value; } }
template <class T> int filled(T* x) { x[0] = 1; return 5; }
template int filled<float>(float*);
extern "C" int kernel(float* x) { x[0] = 7; return table["a"] + 3; }
extern "C" void nothing() {}
extern "C" __attribute__((weak)) int weakly(float* x) { x[1] = 7; return 1; }
extern "C" int answer = 42;
"""
CLONES = """
extern "C" __attribute__((target_clones("avx2", "default"))) void clones(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] *= 2;
}
"""
CUDA = """
__device__ float table[4] = {1, 2, 3, 4};
__device__ __noinline__ float helper(float x, int n) { return x * table[n & 3]; }
extern "C" __global__ void __launch_bounds__(256) kernel(const float* x, float* z, int n) {
  extern __shared__ float staged[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  staged[threadIdx.x] = i < n ? x[i] : 0;
  __syncthreads();
  if (i < n) z[i] = helper(staged[255 - threadIdx.x], i);
}
template <class T> __global__ void __cluster_dims__(2, 1, 1) filled(T* x) { x[0] = 1; }
template __global__ void filled<float>(float*);
"""


@functools.cache
def library(source: str) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "kernel.cpp"
        code.write_text(source)
        subprocess.run(["g++", *CPP_FLAGS, str(code), "-o", f"{folder}/kernel.so"], check=True)
        return (Path(folder) / "kernel.so").read_bytes()


@functools.cache
def cubin(target: str = "sm_90") -> bytes:
    answer = CudaBackend(target).can_build()
    if not answer.ok:
        pytest.skip(f"no NVRTC: {answer.reason}")
    source = CUDA if target != "sm_80" else CUDA.replace("__cluster_dims__(2, 1, 1)", "")  # clusters came with sm_90
    code, log = compile_text(source, nvrtc_options(target))
    assert code, log
    return code


def load(binary: bytes, folder: Path) -> ctypes.CDLL:
    file = folder / "emptied.so"
    file.write_bytes(binary)
    return ctypes.CDLL(str(file))


def test_functions_of_an_emptied_library_return_nothing_and_write_nothing(tmp_path: Path) -> None:
    full = library(LIBRARY)
    emptied, names = empty_library(full)
    assert names == ["_Z6filledIfEiPT_", "_ZN4deep5twiceEf", "kernel", "nothing", "weakly"]
    assert len(emptied) == len(full)
    loaded, values = load(emptied, tmp_path), (ctypes.c_float * 2)(3.0, 3.0)
    assert [getattr(loaded, name)(values) for name in ("kernel", "_Z6filledIfEiPT_", "weakly")] == [0, 0, 0]
    assert list(values) == [3.0, 3.0]
    assert ctypes.c_int.in_dll(loaded, "answer").value == 42


@pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="no AVX2")
def test_functions_that_are_chosen_when_they_are_loaded_are_emptied_too(tmp_path: Path) -> None:
    emptied, _ = empty_library(library(CLONES))
    values = (ctypes.c_float * 2)(3.0, 3.0)
    load(emptied, tmp_path).clones(values, 2)
    assert list(values) == [3.0, 3.0]


def test_a_library_without_functions_cannot_be_emptied() -> None:
    with pytest.raises(NotEmptied, match="exports no function"):
        empty_library(library("static int hidden() { return 1; }\nint value = 1; int (*pointer)() = hidden;"))


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_every_kernel_of_a_cubin_begins_with_the_code_of_one_that_does_nothing(target: str) -> None:
    full = cubin(target)
    emptied, names = empty_cubin(full, target)
    code = nothing_code(target)
    assert sorted(names) == ["_Z6filledIfEvPT_", "kernel"]
    assert len(emptied) == len(full)
    assert 16 <= len(code) <= 256
    assert len(code) % 16 == 0
    elf = Elf(emptied)
    kernels = [section for section in elf.sections if section.name.startswith(".text.")]
    assert [elf.content(section)[: len(code)] for section in kernels] == [code] * len(kernels)
    changed = {place for place, (old, new) in enumerate(zip(full, emptied, strict=True)) if old != new}
    inside = {place for item in kernels for place in range(item.offset, item.offset + len(code))}
    relocations = {
        place + step
        for index, section in enumerate(elf.sections)
        if section in kernels
        for at, place in Elf(full).relocations_of(index)
        if at < len(code)
        for step in range(4)
    }
    assert changed <= inside | relocations


def test_the_code_that_does_nothing_ends_a_thread_early() -> None:
    """EXIT, opcode 0x94d, is among the first two instructions: Volta to Hopper encode it alike."""
    code = nothing_code("sm_90")
    assert any(code[start : start + 2] == bytes.fromhex("4d79") for start in (0, 16))


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(NotEmptied):
        empty_cubin(library(LIBRARY), "sm_90")
    with pytest.raises(NotEmptied):
        empty_cubin(b"// PTX text", "sm_90")


@given(st.binary(max_size=300))
def test_any_bytes_are_an_elf_file_or_said_to_be_none(data: bytes) -> None:
    with contextlib.suppress(NotElf):
        list(Elf(data).symbols())


@example(47, b"\x80")  # an offset beyond a machine word
@given(st.integers(0, 2000), st.binary(min_size=1, max_size=64))
def test_damaged_files_never_break_the_reader(place: int, noise: bytes) -> None:
    """The tables of a file that hostile code has a hand in: anything but NotEmptied would be a fault of ours."""
    for binary, empty in ((library(LIBRARY), empty_library), (cubin(), lambda data: empty_cubin(data, "sm_90"))):
        for start in (place, len(binary) - 1 - place):
            start = max(0, min(start, len(binary) - len(noise)))
            damaged = binary[:start] + noise + binary[start + len(noise) :]
            with contextlib.suppress(NotEmptied):
                emptied, names = empty(damaged)
                assert len(emptied) == len(damaged)
                assert names


def test_sections_say_what_is_code() -> None:
    names = {section.name for section in Elf(library(LIBRARY)).sections if section.flags & EXECUTABLE}
    assert ".text" in names
    assert ".data" not in names
