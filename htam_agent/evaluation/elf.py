"""Reading an ELF file of 64 bits, little-endian: sections and symbols (ELF specification, System V ABI, chapter 4).

The file was built from hostile source, so every offset is checked against the file's end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"\x7fELF\x02\x01"
"""64 bits, least significant byte first."""
HEADER, SECTION = struct.Struct("<6xBB8xHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")
SEGMENT, SYMBOL = struct.Struct("<IIQQQQQQ"), struct.Struct("<IBBHQQ")
RELOCATIONS = {4: 24, 9: 16}
"""Section types SHT_RELA and SHT_REL, and the size of an entry."""
DYNAMIC_SYMBOLS, NO_BYTES, EXECUTABLE, LOAD = 11, 8, 0x4, 1
FUNCTION, INDIRECT_FUNCTION = 2, 10
MOST = 65535


class NotElf(ValueError):
    """The bytes are no such file, or its tables point outside of it; the message says where."""


@dataclass(frozen=True)
class Section:
    """One section: where it lies in the file, and what it belongs to."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True)
class Symbol:
    """One dynamic symbol. `offset`: where its first byte lies in the file, -1 when it is not defined there."""

    name: str
    kind: int
    size: int
    offset: int

    @property
    def defined(self) -> bool:
        return self.offset >= 0

    @property
    def is_function(self) -> bool:
        return self.kind in (FUNCTION, INDIRECT_FUNCTION)


class Elf:
    """The tables of one file. Raises NotElf."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != MAGIC or len(data) < HEADER.size:
            raise NotElf("it is no ELF file of 64 bits")
        self._data = data
        fields = HEADER.unpack_from(data)
        self.machine = int(fields[3])
        _, self._segments, sections = fields[5:8]
        segment_size, self._segment_count, section_size, count, names = fields[10:15]
        if section_size != SECTION.size or not 0 < count < MOST or names >= count:
            raise NotElf("it has no table of sections")
        if self._segment_count and segment_size != SEGMENT.size:
            raise NotElf("its table of segments has another form")
        raw = [self._unpack(SECTION, sections + SECTION.size * index) for index in range(count)]
        strings = self._bytes(raw[names][4], raw[names][5])
        self.sections = [
            Section(_text(strings, item[0]), item[1], item[2], item[4], item[5], item[6], item[7]) for item in raw
        ]

    def content(self, section: Section) -> bytes:
        """The bytes of a section; none for one that takes no room in the file."""
        return b"" if section.kind == NO_BYTES else self._bytes(section.offset, section.size)

    def symbols(self) -> Iterator[Symbol]:
        """The dynamic symbols: what a loaded library gives and what it asks for."""
        for section in self.sections:
            if section.kind != DYNAMIC_SYMBOLS:
                continue
            if section.link >= len(self.sections):
                raise NotElf("its symbols have no names")
            strings, table = self.content(self.sections[section.link]), self.content(section)
            for place in range(0, len(table) - SYMBOL.size + 1, SYMBOL.size):
                name, info, _, index, value, size = SYMBOL.unpack_from(table, place)
                offset = self._offset_of(value) if index else -1
                yield Symbol(_text(strings, name), info & 15, size, offset)

    def relocations_of(self, index: int) -> Iterator[tuple[int, int]]:
        """For the section of this index: (place in it, where the relocation's type lies in the file)."""
        for section in self.sections:
            size = RELOCATIONS.get(section.kind)
            if size is None or section.info != index:
                continue
            table = self.content(section)
            for start in range(0, len(table) - size + 1, size):
                yield struct.unpack_from("<Q", table, start)[0], section.offset + start + 8

    def _offset_of(self, address: int) -> int:
        """Where a virtual address lies in the file; -1 when in no loaded segment's bytes."""
        for index in range(self._segment_count):
            kind, _, offset, start, _, size, *_ = self._unpack(SEGMENT, self._segments + SEGMENT.size * index)
            if kind == LOAD and start <= address < start + size:
                return int(offset + address - start)
        return -1

    def _unpack(self, form: struct.Struct, offset: int) -> tuple[int, ...]:
        try:
            return form.unpack_from(self._data, offset)
        except (struct.error, OverflowError) as error:  # an offset beyond what a machine word holds
            raise NotElf(f"a table points outside of the file ({error})") from error

    def _bytes(self, offset: int, size: int) -> bytes:
        if offset + size > len(self._data):
            raise NotElf(f"{size} bytes at {offset} lie outside of the file")
        return self._data[offset : offset + size]


def _text(strings: bytes, start: int) -> str:
    end = strings.find(b"\0", start)
    return strings[start : end if end >= 0 else len(strings)].decode("utf-8", "replace")
