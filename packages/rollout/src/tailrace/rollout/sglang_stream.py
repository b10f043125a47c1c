"""Requests to SGLang's HTTP server over connections that never block, so that the engine's one thread reads hundreds of them.

connect ──► request written ──► status and header ──► body: parts of a chunked answer, or a length ──► done
"""

from __future__ import annotations

import json
import selectors
import socket
from collections.abc import Mapping
from typing import Any

_READ_BYTES = 1 << 18
_HEADER_BYTES = 1 << 16
_EVENT_BYTES = 64 << 20
_DATA = b"data: "
_DONE = b"[DONE]"


class BrokenStreamError(ConnectionError):
    """The server ended a connection within an answer, or sent what is none."""


class Post:
    """A POST request with a body of JSON, on a connection of its own.

    Args:
        host, port: where the server listens.
        path: the path on the server.
        body: what is sent.
        key: API key; empty: none.

    Raises:
        OSError: there is no such address.
    """

    def __init__(self, host: str, port: int, path: str, body: Mapping[str, Any], key: str = "") -> None:
        payload = json.dumps(body, separators=(",", ":")).encode()
        lines = [f"POST {path} HTTP/1.1", f"Host: {host}:{port}", "Content-Type: application/json", "Connection: close"]
        lines += [f"Content-Length: {len(payload)}", *([f"Authorization: Bearer {key}"] if key else []), "", ""]
        self._unsent = memoryview("\r\n".join(lines).encode() + payload)
        self._read = bytearray()
        self._left: int | None = None  # bytes of the body, or of its part, that are to come; None: a header is
        self._chunked = False
        self.status: int | None = None
        self.done = False
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.socket = socket.socket(family, kind, protocol)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex(address)  # an error shows at the first write

    @property
    def awaits(self) -> int:
        """What it waits for, as `selectors` says it."""
        return selectors.EVENT_WRITE if self._unsent else selectors.EVENT_READ

    def advance(self) -> bytes:
        """Write or read what can be without waiting. Returns what came of the answer's body.

        Raises:
            BrokenStreamError: the answer ended before its end, or is none.
            OSError: the connection broke.
        """
        try:
            if self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
                return b""
            part = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return b""
        if not part:
            raise BrokenStreamError("the connection ended within an answer")
        self._read += part
        return self._body()

    def close(self) -> None:
        """Close the connection. SGLang stops a request whose reader is gone within two seconds."""
        self.socket.close()

    def _body(self) -> bytes:
        if self.status is None and not self._header():
            return b""
        body = bytearray()
        while not self.done:
            if self._left is None:
                end = self._read.find(b"\r\n")
                if end < 0:
                    if len(self._read) > _HEADER_BYTES:
                        raise BrokenStreamError("found no size of a part of an answer")
                    break
                self._left = _number(bytes(self._read[:end]).split(b";")[0], 16)
                del self._read[: end + 2]
                if self._left == 0:
                    self.done = True
                    break
                self._left += 2  # the line break behind it
            if not self._chunked:
                taken = bytes(self._read[: self._left])
                body += taken
                del self._read[: len(taken)]
                self._left -= len(taken)
                self.done = self._left == 0
                break
            if len(self._read) < self._left:
                break
            body += self._read[: self._left - 2]
            del self._read[: self._left]
            self._left = None
        return bytes(body)

    def _header(self) -> bool:
        end = self._read.find(b"\r\n\r\n")
        if end < 0:
            if len(self._read) > _HEADER_BYTES:
                raise BrokenStreamError("found no end of an answer's header")
            return False
        first, *lines = bytes(self._read[:end]).split(b"\r\n")
        del self._read[: end + 4]
        words = first.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
            raise BrokenStreamError(f"found {first[:60]!r}, expected an answer of HTTP/1.1")
        self.status = _number(words[1], 10)
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        self._chunked = fields.get(b"transfer-encoding", b"").lower() == b"chunked"
        if not self._chunked:
            self._left = _number(fields.get(b"content-length", b""), 10)
            self.done = self._left == 0
        return True


class EventStream:
    """The JSON objects of a stream of server-sent events, from its bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.done = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The objects that these bytes complete.

        Raises:
            BrokenStreamError: an event is no object in JSON, or is too long.
        """
        self._bytes += data
        if b"\n\n" not in self._bytes:
            if len(self._bytes) > _EVENT_BYTES:
                raise BrokenStreamError(f"found an event of more than {_EVENT_BYTES:,} bytes")
            return []
        *events, rest = bytes(self._bytes).split(b"\n\n")
        self._bytes = bytearray(rest)
        found = []
        for event in events:
            if not event.startswith(_DATA):
                raise BrokenStreamError(f"found the event {event[:60]!r}, expected one that begins with 'data: '")
            if event[len(_DATA) :] == _DONE:
                self.done = True
                continue
            found.append(as_object(event[len(_DATA) :]))
        return found


def as_object(data: bytes) -> dict[str, Any]:
    """An object in JSON.

    Raises:
        BrokenStreamError: it is none.
    """
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BrokenStreamError(f"found {data[:60]!r}, expected an object in JSON")
    return found


def _number(text: bytes, base: int) -> int:
    try:
        found = int(text, base)
    except ValueError:
        found = -1
    if found < 0:
        raise BrokenStreamError(f"found {text[:60]!r} as a size or status of an answer, expected a number")
    return found
