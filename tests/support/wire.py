"""Messages of MongoDB's wire protocol, as far as a proxy needs them."""

import functools
import socket
import struct
from dataclasses import dataclass
from typing import Any

import bson

_HEADER = struct.Struct("<iiii")  # length with the header, request id, response to, kind
_LENGTH = struct.Struct("<i")
_KIND_QUERY = 2004  # old; still used for the first message of a connection
_KIND_MSG = 2013


@dataclass(frozen=True)
class Message:
    """One message."""

    data: bytes

    @property
    def request_id(self) -> int:
        """Number that the sender has chosen."""
        return int(_HEADER.unpack_from(self.data)[1])

    @property
    def response_to(self) -> int:
        """Number of the request that it answers."""
        return int(_HEADER.unpack_from(self.data)[2])

    @property
    def command(self) -> str:
        """Name of the command in a request; empty for an unknown kind of message."""
        return next(iter(self.document), "")

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        """The command or its answer, without the statements of a bulk write."""
        kind = _HEADER.unpack_from(self.data)[3]
        if kind == _KIND_QUERY:
            end_of_name = self.data.index(b"\0", _HEADER.size + 4)
            return self._document_at(end_of_name + 1 + 8)
        if kind != _KIND_MSG:
            return {}
        start = _HEADER.size + 4
        while self.data[start] != 0:  # a section of statements
            start += 1 + self._length_at(start + 1)
        return self._document_at(start + 1)

    def _document_at(self, start: int) -> dict[str, Any]:
        return dict(bson.decode(self.data[start : start + self._length_at(start)]))

    def _length_at(self, start: int) -> int:
        return int(_LENGTH.unpack_from(self.data, start)[0])


def read_message(source: socket.socket) -> Message | None:
    """Return the next message, None at the end of the connection."""
    header = _read_exactly(source, _HEADER.size)
    if header is None:
        return None
    body = _read_exactly(source, _HEADER.unpack(header)[0] - _HEADER.size)
    return None if body is None else Message(header + body)


def _read_exactly(source: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = source.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
