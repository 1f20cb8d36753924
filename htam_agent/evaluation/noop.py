"""The same binary with every kernel's body taken out: what a candidate's output owes to its own kernels.

Nothing is compiled again. Each entry gets a return as its first instruction, in a copy of the binary that the candidate
was built to, so that names, parameters, launch bounds, clusters, registers and shared memory stay what they were:

- a cubin: the code of a kernel of ours that does nothing, built for the same target, over each kernel's first
  instructions (they end with EXIT), and no relocation that would change them afterwards;
- a shared library: `return 0` over each function that it exports, for x86-64 and AArch64.
"""

from __future__ import annotations

import functools

from htam_agent.errors import HtamError
from htam_agent.evaluation.elf import EXECUTABLE, INDIRECT_FUNCTION, Elf, NotElf, Symbol

CUDA_MACHINE, X86_64, AARCH64 = 190, 62, 183
INSTRUCTION = 16
"""Bytes of an instruction from Volta on."""
NOTHING = 'extern "C" __global__ void nothing() {}'
RETURN_ZERO = {
    X86_64: bytes.fromhex("31c0c3"),  # xor eax, eax; ret
    AARCH64: bytes.fromhex("00008052c0035fd6"),  # mov w0, #0; ret
}
RETURN = {X86_64: bytes.fromhex("c3"), AARCH64: bytes.fromhex("c0035fd6")}
RESOLVE = {
    # An indirect function returns the address of the function to use: here of the instructions behind its own return.
    X86_64: bytes.fromhex("488d0501000000c3") + RETURN_ZERO[X86_64],  # lea rax, [rip + 1]; ret
    AARCH64: bytes.fromhex("40000010c0035fd6") + RETURN_ZERO[AARCH64],  # adr x0, .+8; ret
}
OF_THE_LANGUAGE = ("_ZNSt", "_ZSt", "_ZNKSt", "_ZNVSt", "_ZN9__gnu_cxx", "_ZdlPv", "_Znw", "_init", "_fini")
"""Names of functions that C++'s own library brings into a library: static data may need them while it is loaded."""


class NotEmptied(Exception):
    """No kernel could be taken out; the message is the reason."""


def empty_library(binary: bytes) -> tuple[bytes, list[str]]:
    """A shared library whose exported functions return 0 at once, and their names. Raises NotEmptied."""
    try:
        elf = Elf(binary)
        # Indirect functions last: their resolver is a function of its own at the same place.
        functions = sorted(filter(_is_own, elf.symbols()), key=lambda symbol: symbol.kind)
    except NotElf as error:
        raise NotEmptied(f"the library cannot be read: {error}") from error
    if elf.machine not in RETURN:
        raise NotEmptied(f"the processor (ELF machine {elf.machine}) is neither x86-64 nor AArch64")
    patched, names = bytearray(binary), []
    for symbol in functions:
        body = _body(symbol, elf.machine)
        if body and symbol.offset + len(body) <= len(patched):
            patched[symbol.offset : symbol.offset + len(body)] = body
            names.append(symbol.name)
    if not names:
        raise NotEmptied("the library exports no function")
    return bytes(patched), sorted(set(names))


def asked_for(binary: bytes) -> list[str]:
    """Names that a shared library takes from others. Raises NotEmptied where it cannot be read."""
    try:
        return [symbol.name for symbol in Elf(binary).symbols() if not symbol.defined and symbol.name]
    except NotElf as error:
        raise NotEmptied(f"the library cannot be read: {error}") from error


def _is_own(symbol: Symbol) -> bool:
    return symbol.is_function and symbol.defined and not symbol.name.startswith(OF_THE_LANGUAGE)


def _body(symbol: Symbol, machine: int) -> bytes:
    """What fits into the function; a size of 0 is one that assembly did not state."""
    if symbol.kind == INDIRECT_FUNCTION:
        wanted = RESOLVE[machine]
        return wanted if symbol.size >= len(wanted) else b""
    fitting = (body for body in (RETURN_ZERO[machine], RETURN[machine]) if symbol.size == 0 or symbol.size >= len(body))
    return next(fitting, b"")


def empty_cubin(binary: bytes, target: str) -> tuple[bytes, list[str]]:
    """A cubin whose kernels and functions end at once, and their names. Raises NotEmptied."""
    code = nothing_code(target)
    try:
        elf = Elf(binary)
        patched, names = bytearray(binary), []
        for index, section in enumerate(elf.sections):
            if not section.name.startswith(".text.") or not section.flags & EXECUTABLE:
                continue
            if section.size < len(code) or len(elf.content(section)) < len(code):
                raise NotEmptied(f"the code of {section.name} is too short to be replaced")
            patched[section.offset : section.offset + len(code)] = code
            for place, kind in elf.relocations_of(index):
                if place < len(code):
                    patched[kind : kind + 4] = bytes(4)  # a type of 0 relocates nothing
            names.append(section.name.removeprefix(".text."))
    except NotElf as error:
        raise NotEmptied(f"the cubin cannot be read: {error}") from error
    if elf.machine != CUDA_MACHINE:
        raise NotEmptied(f"it is no cubin (ELF machine {elf.machine})")
    if not names:
        raise NotEmptied("the cubin has no kernel")
    return bytes(patched), names


@functools.cache
def nothing_code(target: str) -> bytes:
    """The instructions of a kernel that does nothing on this target ("sm_90"), without the padding behind them.

    Raises NotEmptied where NVRTC is missing.
    """
    from htam_agent.backends.cuda import compile_text
    from htam_agent.backends.flags import nvrtc_options

    try:
        cubin, log = compile_text(NOTHING, nvrtc_options(target))
    except HtamError as error:
        raise NotEmptied(error.message) from error
    if not cubin:
        raise NotEmptied(f"NVRTC does not build an empty kernel for {target}: {log[:200]}")
    elf = Elf(cubin)
    code = next(elf.content(section) for section in elf.sections if section.name == ".text.nothing")
    pieces = [code[start : start + INSTRUCTION] for start in range(0, len(code), INSTRUCTION)]
    while len(pieces) > 1 and pieces[-1] == pieces[-2]:
        pieces.pop()
    return b"".join(pieces[:-1]) if len(pieces) > 1 else code
