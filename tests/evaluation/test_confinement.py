"""The layers by themselves: for an unprivileged user too, and each reported when it is off."""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
import sys

import pytest

from htam_agent.evaluation.confinement import LAYERS
from htam_agent.evaluation.system_calls import TABLES, filter_program, refused_numbers

AS_NOBODY = """
import ctypes, json, os
from htam_agent.evaluation.confinement import confinement_report
from htam_agent.evaluation.package_folders import package_folders
package_folders()
open("/proc/self/status", encoding="ascii", errors="replace").close()  # its codec: the interpreter may be closed to all
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(12345, 12345, 12345)
    os.setresuid(12345, 12345, 12345)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
print(json.dumps(confinement_report()))
"""


def test_an_unprivileged_user_has_every_layer_but_another_user() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY], capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ)
    )
    active, missing = json.loads(done.stdout.splitlines()[-1])
    reasons = {line.partition(":")[0]: line for line in missing}
    if "own-ipc" in reasons:
        pytest.skip(f"this machine grants users no namespaces: {reasons['own-ipc']}")
    assert set(active) | set(reasons) == set(LAYERS)
    assert set(reasons) <= {"other-user", "landlock"}
    assert "only root" in reasons["other-user"]


@pytest.mark.parametrize("machine", TABLES)
def test_the_filter_is_a_program_that_the_kernel_could_take(machine: str) -> None:
    """Jumps stay inside and the last step returns; the kernel refuses anything else."""
    program = filter_program(machine)
    steps = list(struct.iter_unpack("HBBI", program))
    assert len(steps) < 4096
    for place, (code, if_true, if_false, _) in enumerate(steps):
        if code & 7 == 5:
            assert place + 1 + max(if_true, if_false) < len(steps)
    assert steps[-1][0] == 6


@pytest.mark.parametrize("machine", TABLES)
def test_the_filter_decides_as_its_tables_say(machine: str) -> None:
    architecture, _, clone, socket = TABLES[machine]
    allowed, refused, missing = 0x7FFF0000, 0x00050001, 0x00050026
    for name, number in refused_numbers(machine).items():
        assert run(machine, architecture, number, 0) == refused, name
    assert run(machine, architecture, 435, 0) == missing
    assert run(machine, architecture, clone, 0x11) == allowed
    assert run(machine, architecture, clone, 0x10000011) == refused
    assert [run(machine, architecture, socket, family) for family in (1, 2, 10, 16)] == [allowed] * 4
    assert [run(machine, architecture, socket, family) for family in (0, 17, 38, 40)] == [refused] * 4
    assert run(machine, architecture, 3000, 0) == allowed
    assert run(machine, architecture + 1, 0, 0) == 0x80000000
    if machine == "x86_64":
        assert run(machine, architecture, 0x40000000 | 101, 0) == 0x80000000


def run(machine: str, architecture: int, number: int, argument: int) -> int:
    """What the filter returns for a call: its few instructions, interpreted."""
    data = struct.pack("IIQQ", number, architecture, 0, argument)
    steps = list(struct.iter_unpack("HBBI", filter_program(machine)))
    place, value = 0, 0
    while True:
        code, if_true, if_false, operand = steps[place]
        place += 1
        if code == 0x20:
            (value,) = struct.unpack_from("I", data, operand)
        elif code == 0x06:
            return int(operand)
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            place += if_true if holds else if_false


def test_this_machine_has_a_table() -> None:
    assert platform.machine() in TABLES
