"""NIXL: the reader reads the exporter's registered memory (READ), over whatever UCX finds between the two.

    exporter -> reader    address (8), device (8), then the metadata of its agent, through the export's door

The agent's metadata is parsed by the library, so it is taken only from an exporter that was reached with the export's
secret. `get_serialized_descs` and its counterpart are not used: they pickle.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Any

from tailrace.paramserver.copying import Address
from tailrace.paramserver.errors import ProtocolError, RelayUnreachable, TransportUnavailable
from tailrace.paramserver.transport.device import DeviceMemory
from tailrace.paramserver.transport.listener import (
    Door,
    described,
    left,
    listen,
    receive,
    receive_blob,
    send_blob,
)
from tailrace.paramserver.transport.protocol import Exportable
from tailrace.paramserver.transport.reading import LibrarySource, LibraryTransport, await_transfer

_WHERE = struct.Struct("!Qq")
_HOST = -1  # in the place of a device's number


class Nixl(LibraryTransport):
    """One-sided reads through NIXL's UCX backend."""

    name = "nixl"
    module = "nixl"

    def load(self) -> object:
        return _library()

    def export(self, memory: Exportable) -> NixlExport:
        return NixlExport(memory, self.host)

    def reach(self, sock: socket.socket, nbytes: int, where: str, deadline: float) -> NixlSource:
        sock.settimeout(left(deadline))
        start, device = _WHERE.unpack(receive(sock, _WHERE.size))
        return NixlSource(sock, nbytes, where, receive_blob(sock), start, device)


class NixlExport:
    """See `Export`."""

    def __init__(self, memory: Exportable, host: str) -> None:
        listener = listen(host)
        try:
            self._agent = _agent()
            if isinstance(memory, DeviceMemory):
                self._address, self._nbytes, self._device = memory.address, memory.nbytes, memory.device
                self._held: Any = memory
            else:
                self._held = Address(memory.view).__enter__()
                self._address, self._nbytes, self._device = self._held.start, self._held.nbytes, _HOST
            self._registered = None
            if self._nbytes:
                self._registered = _register(self._agent, self._address, self._nbytes, self._device)
            self._metadata = self._agent.get_agent_metadata()
        except BaseException:
            listener.close()
            raise
        self._door = Door(listener, self._serve)
        self.descriptor = described(Nixl.name, listener, self._door, self._nbytes)

    def close(self) -> None:
        self._door.close()
        if self._agent is None:
            return
        if self._registered is not None:
            self._agent.deregister_memory(self._registered)
        self._agent = None
        if isinstance(self._held, Address):
            self._held.__exit__(None, None, None)
        self._held = None

    def _serve(self, sock: socket.socket) -> None:
        sock.sendall(_WHERE.pack(self._address, self._device))
        send_blob(sock, self._metadata)
        sock.recv(1)  # ends with the reader, or with the door


class NixlSource(LibrarySource):
    """Reads with an agent of its own."""

    def __init__(
        self, sock: socket.socket, nbytes: int, where: str, metadata: bytes, address: int, device: int
    ) -> None:
        super().__init__(sock, nbytes, where)
        self._address, self._device = address, device
        self.handle = _agent()
        try:
            self._peer = _text(self.handle.add_remote_agent(metadata))
        except Exception as error:  # the library's own classes, which are not public
            raise ProtocolError(f"{where} sent metadata that NIXL refuses: {error}") from error

    def transfer(self, view: memoryview | DeviceMemory, offset: int, deadline: float) -> None:
        if isinstance(view, DeviceMemory):
            self._read(view.address, view.nbytes, view.device, offset, deadline)
        else:
            with Address(view, writable=True) as held:
                self._read(held.start, held.nbytes, _HOST, offset, deadline)

    def _read(self, into: int, nbytes: int, device: int, offset: int, deadline: float) -> None:
        agent, registered, transfer = self.handle, None, None
        try:
            registered = self._guarded(lambda: _register(agent, into, nbytes, device))
            transfer = self._guarded(
                lambda: agent.initialize_xfer(
                    "READ",
                    agent.get_xfer_descs([(into, nbytes, max(device, 0))], _kind(device)),
                    agent.get_xfer_descs([(self._address + offset, nbytes, max(self._device, 0))], _kind(self._device)),
                    self._peer,
                )
            )
            state = [self._guarded(lambda: agent.transfer(transfer))]

            def done() -> bool:
                if state[0] == "PROC":
                    state[0] = self._guarded(lambda: agent.check_xfer_state(transfer))
                if state[0] == "ERR":
                    raise RelayUnreachable(f"{self._where} cannot be read from: NIXL's transfer failed")
                return bool(state[0] == "DONE")

            await_transfer(done, self._sock, deadline)
            transfer.release()
            agent.deregister_memory(registered)
        except BaseException:
            # A transfer that may still run must not write later: the agent, and its connections, go.
            self.handle = agent = transfer = registered = None
            raise

    def _guarded(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except Exception as error:
            raise RelayUnreachable(f"{self._where} cannot be read from: NIXL says {error}") from error


def _library() -> Any:
    api = importlib.import_module("nixl._api")
    logging.getLogger("nixl").setLevel(logging.WARNING)  # it reports every agent otherwise
    return api


def _agent() -> Any:
    """A separate agent for each export and source, so that closing one does not disturb others."""
    api = _library()
    try:
        agent = api.nixl_agent(f"tailrace-{secrets.token_hex(8)}", api.nixl_agent_config(backends=[]))
        # With UCX's own error handling there is no shared memory, and a reader that dies in the middle of a read over TCP
        # makes UCX abort the exporter's process. The door's connection tells both ends when the other is gone.
        agent.create_backend("UCX", {"ucx_error_handling_mode": "none"})
        return agent
    except Exception as error:
        raise TransportUnavailable(f"NIXL cannot make an agent: {error}") from error


def _register(agent: Any, address: int, nbytes: int, device: int) -> Any:
    return agent.register_memory([(address, nbytes, max(device, 0), "")], _kind(device))


def _kind(device: int) -> str:
    return "DRAM" if device == _HOST else "VRAM"


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
