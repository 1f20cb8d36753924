"""Typed messages and file descriptors over a UNIX stream socket: how the harness processes talk.

A frame is a four-byte little-endian length and that many bytes of JSON. What arrives is validated against the pydantic
record that the reader expects and never executed: a hostile process can at worst send nonsense, which is `Garbled`.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

FRAME_LIMIT = 64 << 20
HOSTILE_FRAME_LIMIT = 1 << 20
DESCRIPTORS_LIMIT = 16


class Letter(BaseModel):
    """Base of everything that crosses a channel: frozen, no unknown fields, infinities and NaN kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


L = TypeVar("L", bound=BaseModel)


class ChannelError(Exception):
    """The other side cannot be talked to any more."""


class Closed(ChannelError):
    """The other side is gone."""


class Silent(ChannelError):
    """No complete answer came within the time limit."""


class Garbled(ChannelError):
    """What came is no message of the expected form."""


class Channel:
    """One end of a connected pair. `hostile` readers accept short frames only and never a descriptor."""

    def __init__(self, connection: socket.socket, *, hostile: bool = False) -> None:
        self._socket = connection
        self._hostile = hostile

    @classmethod
    def pair(cls, *, hostile: bool = False) -> tuple[Channel, socket.socket]:
        """A channel for this process and the raw other end for a child."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours, hostile=hostile), theirs

    def fileno(self) -> int:
        """The descriptor, for select."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes this end; closing twice is fine."""
        self._socket.close()

    def send(self, message: BaseModel, descriptors: Sequence[int] = (), seconds: float = 60.0) -> None:
        """Sends one message; `descriptors` are duplicated into the other process.

        Raises Closed when the other side is gone and Silent when it does not read for `seconds`.
        """
        payload = message.model_dump_json().encode()
        header = struct.pack("<I", len(payload))
        try:
            self._socket.settimeout(seconds)
            if descriptors:
                socket.send_fds(self._socket, [header], list(descriptors))
                self._socket.sendall(payload)
            else:
                self._socket.sendall(header + payload)
        except TimeoutError as error:
            raise Silent("the other side does not read") from error
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self, kind: type[L], seconds: float | None = None) -> L:
        """The next message, as a `kind`. Raises Closed, Silent (nothing complete in `seconds`) or Garbled."""
        message, descriptors = self.receive_with_descriptors(kind, seconds)
        for descriptor in descriptors:
            os.close(descriptor)
        return message

    def receive_with_descriptors(self, kind: type[L], seconds: float | None = None) -> tuple[L, list[int]]:
        """The next message and the descriptors that came with it, now owned by the caller."""
        deadline = None if seconds is None else time.monotonic() + seconds
        self._socket.setblocking(False)
        header, descriptors = self._read(4, deadline, not self._hostile)
        (length,) = struct.unpack("<I", header)
        limit = HOSTILE_FRAME_LIMIT if self._hostile else FRAME_LIMIT
        if length > limit:
            raise Garbled(f"a frame of {length} bytes (at most {limit} are read)")
        payload, _ = self._read(length, deadline, False)
        try:
            return kind.model_validate_json(payload), descriptors
        except ValidationError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            raise Garbled(f"no {kind.__name__}: {error.errors()[0]['msg']}") from error

    def _read(self, count: int, deadline: float | None, accept: bool) -> tuple[bytes, list[int]]:
        data = bytearray()
        descriptors: list[int] = []
        while len(data) < count:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._socket], [], [], left)[0]:
                raise Silent("no answer within the time limit")
            try:
                if accept:
                    chunk, came, _, _ = socket.recv_fds(self._socket, count - len(data), DESCRIPTORS_LIMIT)
                    descriptors.extend(came)
                else:
                    chunk = self._socket.recv(count - len(data))
            except BlockingIOError:
                continue
            except OSError as error:
                raise Closed(str(error)) from error
            if not chunk:
                raise Closed("the connection ended")
            data += chunk
        return bytes(data), descriptors
