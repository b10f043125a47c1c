"""UCX through ucxx: the exporter sends the range that the reader asks for, over whatever UCX finds between the two.

    reader -> exporter    the address of its UCX worker; then for each range: offset (8), size (8)      through the door
    exporter -> reader    the range, as one tagged UCX message

ucxx has no one-sided reads, so the exporter takes part. Each connection has its own worker in a context of its own, used by
one thread at a time: ucxx asks UCX for contexts without locks, in which threads must not meet. That thread asks for progress
itself: ucxx's blocking progress is half as fast, and shared memory reports a lost peer to neither. So UCX's
own error handling is off (shared memory needs that), and the door's connection tells both ends when the other is gone.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import socket
import struct
import threading
from typing import Any

from tailrace.paramserver.copying import Address, at
from tailrace.paramserver.errors import ProtocolError, RelayUnreachable
from tailrace.paramserver.transport.device import DeviceMemory
from tailrace.paramserver.transport.listener import (
    Door,
    described,
    gone,
    left,
    listen,
    receive,
    receive_blob,
    send_blob,
)
from tailrace.paramserver.transport.protocol import Exportable
from tailrace.paramserver.transport.reading import LibrarySource, LibraryTransport, await_transfer

_REQUEST = struct.Struct("!QQ")
_TAG = 0x7461696C


class Ucx(LibraryTransport):
    """Ranges as tagged UCX messages: shared memory, TCP, InfiniBand, NVLink."""

    name = "ucx"
    module = "ucxx"

    def load(self) -> object:
        return _library()

    def export(self, memory: Exportable) -> UcxExport:
        return UcxExport(memory, self.host)

    def reach(self, sock: socket.socket, nbytes: int, where: str, deadline: float) -> UcxSource:
        return UcxSource(sock, nbytes, where, deadline)


class UcxExport:
    """See `Export`."""

    def __init__(self, memory: Exportable, host: str) -> None:
        self._memory = memory
        self._nbytes = memory.nbytes if isinstance(memory, DeviceMemory) else memory.view.nbytes
        listener = listen(host)
        self._door = Door(listener, self._serve)
        self.descriptor = described(Ucx.name, listener, self._door, self._nbytes)

    def close(self) -> None:
        self._door.close()

    def _serve(self, sock: socket.socket) -> None:
        library = _library()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        worker = _worker()
        address = library.UCXAddress.create_from_buffer(receive_blob(sock, 65536))
        endpoint = worker.create_endpoint_from_worker_address(address, endpoint_error_handling=False)
        sock.sendall(b"+")
        while True:
            offset, nbytes = _REQUEST.unpack(receive(sock, _REQUEST.size))
            if nbytes == 0 or offset + nbytes > self._nbytes:
                raise EOFError  # the reader checks its ranges: this is no reader of ours
            self._send(worker, endpoint, offset, nbytes, sock)

    def _send(self, worker: Any, endpoint: Any, offset: int, nbytes: int, sock: socket.socket) -> None:
        library = _library()
        with _Buffer(self._memory, offset, nbytes, writable=False) as buffer:
            try:
                request = endpoint.tag_send(buffer, library.UCXXTag(_TAG))
                # The reader may have its range, and ask for the next, before this end hears that it was sent.
                await_transfer(lambda: _done(worker, request), sock, None, gone)
                request.check_error()
            except library.UCXError as error:
                raise RelayUnreachable(f"UCX cannot send to a reader: {error}") from error
            except BaseException:
                worker.cancel_inflight_requests()
                raise


class UcxSource(LibrarySource):
    """Receives with a worker of its own."""

    def __init__(self, sock: socket.socket, nbytes: int, where: str, deadline: float) -> None:
        super().__init__(sock, nbytes, where)
        self._library = _library()
        self.handle = _worker()
        sock.settimeout(left(deadline))
        send_blob(sock, self.handle.address.tobytes())
        if receive(sock, 1) != b"+":
            raise ProtocolError(f"{where} does not speak UCX")

    def transfer(self, view: memoryview | DeviceMemory, offset: int, deadline: float) -> None:
        with _Buffer(view, 0, view.nbytes, writable=True) as buffer:
            worker = self.handle
            request = worker.tag_recv(buffer, self._library.UCXXTag(_TAG))
            try:
                self._sock.settimeout(left(deadline))
                self._sock.sendall(_REQUEST.pack(offset, view.nbytes))
                await_transfer(lambda: _done(worker, request), self._sock, deadline)
                request.check_error()
            except BaseException as error:
                self.handle = None
                worker.cancel_inflight_requests()  # nothing may be written later
                if isinstance(error, self._library.UCXError):
                    raise RelayUnreachable(f"{self._where} cannot be read from: UCX says {error}") from error
                raise


class _Buffer:
    """A range of memory as ucxx takes it: an object with the buffer protocol or the CUDA array interface."""

    def __init__(self, memory: Any, offset: int, nbytes: int, *, writable: bool) -> None:
        self._memory, self._offset, self._nbytes, self._writable = memory, offset, nbytes, writable
        self._held: Address | None = None

    def __enter__(self) -> Any:
        library = _library()
        if isinstance(self._memory, DeviceMemory):
            return library.Array(self._memory.part(self._offset, self._nbytes))
        view = self._memory if isinstance(self._memory, memoryview) else self._memory.view
        self._held = Address(view, writable=self._writable).__enter__()
        return library.Array(at(self._held.start + self._offset, self._nbytes))

    def __exit__(self, *exc: object) -> None:
        if self._held is not None:
            self._held.__exit__(None, None, None)


class _Library:
    """The names of ucxx that are used here."""

    def __init__(self) -> None:
        exceptions = importlib.import_module("ucxx.exceptions")
        arr, libucxx = importlib.import_module("ucxx._lib.arr"), importlib.import_module("ucxx._lib.libucxx")
        self.Array = arr.Array
        self.UCXAddress, self.UCXXTag = libucxx.UCXAddress, libucxx.UCXXTag
        self.UCXContext, self.UCXWorker, self.Feature = libucxx.UCXContext, libucxx.UCXWorker, libucxx.Feature
        self.UCXError = exceptions.UCXError


@functools.cache
def _library() -> Any:
    return _Library()


_making = threading.Lock()


def _worker() -> Any:
    library = _library()
    with _making:  # the first one makes UCX load what belongs to the whole process
        return library.UCXWorker(library.UCXContext({}, (library.Feature.TAG,)))


def _done(worker: Any, request: Any) -> bool:
    worker.progress()
    return bool(request.completed)
