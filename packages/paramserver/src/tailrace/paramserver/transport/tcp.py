"""Ranges over TCP: the kernel sends from the exporter's memory, the reader receives into its own.

    reader -> exporter    offset (8), size (8), big-endian
    exporter -> reader    "+" and the bytes, or "-" if the range sticks out

What a relay sends on its own connections needs none of this. It is for readers that fetch ranges by themselves, and for
several connections at a time. Neither end encrypts: across hosts, use a network that is yours.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from tailrace.paramserver.errors import ProtocolError
from tailrace.paramserver.transport.listener import (
    Door,
    check_host_memory,
    check_range,
    described,
    enter,
    fill,
    left,
    listen,
    naming,
    receive,
)
from tailrace.paramserver.transport.protocol import Exportable

_REQUEST = struct.Struct("!QQ")
_NO_SENDFILE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTSOCK, errno.ENODEV}


class Tcp:
    """A server of ranges for each export.

    Args:
        host: the interface to listen on and the address under which readers reach it; loopback by default.
    """

    name = "tcp"

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host

    def unavailable(self) -> str | None:
        return None

    def export(self, memory: Exportable) -> TcpExport:
        check_host_memory(self.name, memory)
        return TcpExport(memory, self.host)

    def open(self, descriptor: Mapping[str, Any], *, timeout_s: float) -> TcpSource:
        return TcpSource(*enter(self.name, descriptor, timeout_s))


class TcpExport:
    """See `Export`."""

    def __init__(self, memory: Exportable, host: str) -> None:
        listener = listen(host)
        self._view = memory.view
        self._fd = os.dup(memory.fd) if memory.fd >= 0 else -1
        self._door = Door(listener, self._serve)
        self.descriptor = described(Tcp.name, listener, self._door, self._view.nbytes)

    def close(self) -> None:
        self._door.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._view = memoryview(b"")

    def _serve(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            offset, nbytes = _REQUEST.unpack(receive(sock, _REQUEST.size))
            if offset + nbytes > self._view.nbytes:
                sock.sendall(b"-")
                continue
            sock.sendall(b"+")
            sent = self._send_file(sock, offset, nbytes)
            if sent < nbytes:
                sock.sendall(self._view[offset + sent : offset + nbytes])

    def _send_file(self, sock: socket.socket, offset: int, nbytes: int) -> int:
        sent = 0
        while self._fd >= 0 and hasattr(os, "sendfile") and sent < nbytes:
            try:
                count = os.sendfile(sock.fileno(), self._fd, offset + sent, nbytes - sent)
            except OSError as error:
                if error.errno in _NO_SENDFILE:
                    break
                raise
            if count == 0:
                break
            sent += count
        return sent


class TcpSource:
    """See `Source`."""

    def __init__(self, sock: socket.socket, nbytes: int, peer: str) -> None:
        self._sock, self._nbytes, self._where = sock, nbytes, f"the exporter {peer}"

    def read_into(self, view: memoryview, offset: int, timeout_s: float) -> None:
        check_range(view, offset, self._nbytes)
        flat = view.cast("B") if view.nbytes else view
        deadline = time.monotonic() + timeout_s
        with naming(self._where, timeout_s):
            self._sock.settimeout(left(deadline))
            self._sock.sendall(_REQUEST.pack(offset, view.nbytes))
            answer = receive(self._sock, 1)
            if answer != b"+":
                raise ProtocolError(f"{self._where} refused {view.nbytes} bytes at {offset} of {self._nbytes}")
            fill(self._sock, flat, deadline)

    def close(self) -> None:
        self._sock.close()
