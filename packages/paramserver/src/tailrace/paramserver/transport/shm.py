"""Shared memory between processes of one host: the exporter hands its file descriptor over, the reader maps it.

The descriptor crosses an abstract Unix socket (SCM_RIGHTS). So memory without a name can be read too, there is nothing to
clean up after a crash, and a name that was given to other memory meanwhile cannot be mistaken for the old one. Abstract
sockets belong to a network namespace: containers that share nothing but /dev/shm do not find each other here.

A read is a copy by this process: a suspended exporter does not delay it. Its death or its `close` ends it.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from tailrace.paramserver.copying import copy, hashed_copy
from tailrace.paramserver.errors import ProtocolError, RelayUnreachable, TransportUnavailable
from tailrace.paramserver.transport.listener import (
    Door,
    Fields,
    check_host_memory,
    check_range,
    ended,
    knock,
    left,
    naming,
)
from tailrace.paramserver.transport.protocol import Exportable

_PREFIX = "tailrace-export-"
_WHERE = "the exporter on this host"


class SharedMemory:
    """Readers map the exported memory and copy from it.

    Args:
        host: not used here; every transport has this argument.
    """

    name = "shm"

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host

    def unavailable(self) -> str | None:
        return None if sys.platform == "linux" else "it needs Linux's abstract sockets"

    def export(self, memory: Exportable) -> SharedExport:
        check_host_memory(self.name, memory)
        if memory.fd < 0:
            raise TransportUnavailable(f"found {memory.name!r} without a file descriptor, expected shared memory")
        return SharedExport(memory)

    def open(self, descriptor: Mapping[str, Any], *, timeout_s: float) -> SharedSource:
        fields = Fields(self.name, descriptor)
        socket_name, nbytes, secret = fields.text("socket"), fields.nbytes(), fields.secret()
        if not socket_name.startswith(_PREFIX) or len(socket_name) > 100:
            raise ProtocolError(f"socket: found {socket_name[:40]!r}, expected a name that starts with {_PREFIX}")
        deadline = time.monotonic() + timeout_s
        sock = knock(socket.AF_UNIX, f"\0{socket_name}", secret, timeout_s)
        try:
            with naming(_WHERE, timeout_s):
                fd = _received_descriptor(sock, deadline)
            try:
                if os.fstat(fd).st_size < nbytes:
                    raise ProtocolError(f"{_WHERE} handed over {os.fstat(fd).st_size} bytes, expected {nbytes}")
                # Without MAP_POPULATE: a reader may need little of it, and the first copy maps the pages that it touches.
                mapped = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) if nbytes else None
            finally:
                os.close(fd)
        except BaseException:
            sock.close()
            raise
        return SharedSource(sock, mapped, nbytes)


class SharedExport:
    """See `Export`."""

    def __init__(self, memory: Exportable) -> None:
        nbytes = memory.view.nbytes
        if os.fstat(memory.fd).st_size < nbytes:
            raise TransportUnavailable(f"{memory.name!r}: its file is smaller than its {nbytes} bytes")
        self._fd = os.dup(memory.fd)  # ours, so that a number that is reused cannot export something else
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = _PREFIX + secrets.token_hex(8)
        try:
            listener.bind(f"\0{name}")
            listener.listen(64)
        except OSError:
            listener.close()
            os.close(self._fd)
            raise
        self._door = Door(listener, self._serve)
        self.descriptor: dict[str, Any] = {
            "transport": SharedMemory.name,
            "socket": name,
            "nbytes": nbytes,
            "secret": self._door.secret,
        }

    def close(self) -> None:
        self._door.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _serve(self, sock: socket.socket) -> None:
        socket.send_fds(sock, [b"="], [self._fd])
        sock.recv(1)  # ends with the reader, or with the door


class SharedSource:
    """See `Source`."""

    def __init__(self, sock: socket.socket, mapped: mmap.mmap | None, nbytes: int) -> None:
        self._sock, self._map, self._nbytes = sock, mapped, nbytes
        self._view = memoryview(b"") if mapped is None else memoryview(mapped)

    def read_into(self, view: memoryview, offset: int, timeout_s: float) -> None:  # noqa: ARG002  a copy does not wait
        check_range(view, offset, self._nbytes)
        self._check_exported()
        copy(view, self._view[offset : offset + view.nbytes])
        self._check_exported()  # closed in the middle: the exporter may have written over it

    def read_hashed(self, view: memoryview, offset: int, timeout_s: float) -> int:  # noqa: ARG002
        check_range(view, offset, self._nbytes)
        self._check_exported()
        found = hashed_copy(view, self._view[offset : offset + view.nbytes])
        self._check_exported()
        return found

    def close(self) -> None:
        self._sock.close()
        self._view.release()
        if self._map is not None:
            self._map.close()
            self._map = None

    def _check_exported(self) -> None:
        if self._sock.fileno() < 0 or ended(self._sock):
            raise RelayUnreachable(f"{_WHERE} died, or exports this no longer")


def _received_descriptor(sock: socket.socket, deadline: float) -> int:
    sock.settimeout(left(deadline))
    data, found, _, _ = socket.recv_fds(sock, 1, 1)
    if not data:
        raise EOFError
    if len(found) != 1:
        for fd in found:
            os.close(fd)
        raise ProtocolError(f"{_WHERE} handed over {len(found)} file descriptors, expected one")
    return found[0]
