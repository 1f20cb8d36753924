"""The library that counts launches, on a runtime of the tests' own: no GPU is needed to see who calls whom."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from htam_agent.evaluation.native import native_library

RUNTIME = """
typedef struct { unsigned x, y, z; } Size;
int launched;
unsigned last_block;
static int launch(Size b, unsigned long s) {
  ++launched; last_block = b.x + 10 * b.y + 100 * b.z; return s == 99 ? 9 : 0;
}
int cudaLaunchKernel(const void* f, Size g, Size b, void** a, unsigned long s, void* stream) { return launch(b, s); }
int __cudaLaunchKernel(const void* f, Size g, Size b, void** a, unsigned long s, void* stream) {
  return launch(b, s);
}
int cudaLaunchCooperativeKernel(const void* f, Size g, Size b, void** a, unsigned long s, void* stream) {
  return launch(b, s);
}
int cudaLaunchKernelExC(const void* c, const void* f, void** a) { ++launched; return 0; }
int cudaGraphLaunch(void* g, void* s) { ++launched; return 0; }
"""
USER = """
typedef struct { unsigned x, y, z; } Size;
int cudaLaunchKernel(const void*, Size, Size, void**, unsigned long, void*);
int __cudaLaunchKernel(const void*, Size, Size, void**, unsigned long, void*);
int cudaLaunchCooperativeKernel(const void*, Size, Size, void**, unsigned long, void*);
int cudaLaunchKernelExC(const void*, const void*, void**);
int cudaGraphLaunch(void*, void*);
int plain(long shared) { return cudaLaunchKernel(0, (Size){1, 1, 1}, (Size){3, 2, 1}, 0, shared, 0); }
int handle(void) { return __cudaLaunchKernel(0, (Size){1, 1, 1}, (Size){3, 2, 1}, 0, 0, 0); }
int cooperative(void) { return cudaLaunchCooperativeKernel(0, (Size){1, 1, 1}, (Size){3, 2, 1}, 0, 0, 0); }
int extended(void) { return cudaLaunchKernelExC(0, 0, 0); }
int graph(void) { return cudaGraphLaunch(0, 0); }
"""
PROGRAM = """
import ctypes, json, sys
counter, folder = sys.argv[1:]
library = ctypes.CDLL(counter, mode=ctypes.RTLD_GLOBAL)
runtime = ctypes.CDLL(folder + "/libcudart.so.13")
own, other = ctypes.CDLL(folder + "/own/user.so"), ctypes.CDLL(folder + "/other/user.so")
numbers, said = (ctypes.c_long * 3)(), []

def launch(user):
    return [user.plain(0), user.handle(), user.cooperative(), user.extended(), user.graph()]

def step(watch, drop):
    before = ctypes.c_int.in_dll(runtime, "launched").value
    if watch:
        library.htam_launches_watch((folder + "/own").encode(), drop)
    status = launch(own) + launch(other)
    counts = None
    if watch:
        library.htam_launches_end(numbers)
        counts = list(numbers)
    said.append([status, ctypes.c_int.in_dll(runtime, "launched").value - before, counts])

step(False, 0); step(True, 0); step(True, 1); step(False, 0)
said.append([own.plain(99), ctypes.c_uint.in_dll(runtime, "last_block").value])
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on PATH")
    made = tmp_path_factory.mktemp("launches")
    (made / "runtime.c").write_text(RUNTIME)
    (made / "user.c").write_text(USER)
    build = [compiler, "-shared", "-fPIC", "-w"]
    subprocess.run([*build, "runtime.c", "-o", "libcudart.so.13", "-Wl,-soname,libcudart.so.13"], cwd=made, check=True)
    for name in ("own", "other"):
        (made / name).mkdir()
        link = ["-o", f"{name}/user.so", "-L.", "-l:libcudart.so.13", f"-Wl,-rpath,{made}"]
        subprocess.run([*build, "user.c", *link], cwd=made, check=True)
    return made


def test_launches_are_counted_by_who_makes_them_and_own_ones_left_out(folder: Path) -> None:
    counter = native_library("launches")
    assert counter.path, counter.reason
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, counter.path, str(folder)], capture_output=True, text=True, check=True
    )
    unwatched, counted, dropped, again, passed_on = json.loads(result.stdout)
    nothing_wrong = [0] * 10
    assert unwatched == again == [nothing_wrong, 10, None]
    assert counted == [nothing_wrong, 10, [4, 4, 2]]
    assert dropped == [nothing_wrong, 6, [4, 4, 2]], "graphs are passed on, whoever launches them"
    assert passed_on == [9, 123], "the runtime's own status, and the sizes that the caller gave"
