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
import time
from collections.abc import Callable, Mapping
from typing import Any

from tailrace.paramserver.copying import Address
from tailrace.paramserver.errors import ProtocolError, RelayUnreachable, TransportUnavailable
from tailrace.paramserver.transport.device import DeviceMemory
from tailrace.paramserver.transport.fields import described, enter
from tailrace.paramserver.transport.listener import (
    Door,
    ended,
    left,
    listen,
    naming,
    receive,
    receive_blob,
    send_blob,
)
from tailrace.paramserver.transport.protocol import Exportable
from tailrace.paramserver.transport.reading import await_transfer, check_destination

_WHERE = struct.Struct("!Qq")
_HOST = -1  # in the place of a device's number


class Nixl:
    """One-sided reads through NIXL's UCX backend.

    Args:
        host: the interface on which the door of an export listens, and under which readers reach it.
    """

    name = "nixl"

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host

    def unavailable(self) -> str | None:
        if importlib.util.find_spec("nixl") is None:
            return "nixl is not installed; pip install 'tailrace-paramserver[nixl]'"
        try:
            _library()
        except ImportError as error:
            return f"nixl does not load: {error}"
        return None

    def export(self, memory: Exportable) -> NixlExport:
        return NixlExport(memory, self.host)

    def open(self, descriptor: Mapping[str, Any], *, timeout_s: float) -> NixlSource:
        deadline = time.monotonic() + timeout_s
        sock, nbytes, address = enter(self.name, descriptor, timeout_s)
        where = f"the exporter {address}"
        try:
            with naming(where, timeout_s):
                sock.settimeout(left(deadline))
                start, device = _WHERE.unpack(receive(sock, _WHERE.size))
                metadata = receive_blob(sock)
            return NixlSource(sock, nbytes, where, metadata, start, device)
        except BaseException:
            sock.close()
            raise


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


class NixlSource:
    """See `Source`. Memory of a device can be read into, too."""

    def __init__(
        self, sock: socket.socket, nbytes: int, where: str, metadata: bytes, address: int, device: int
    ) -> None:
        self._sock, self._nbytes, self._where = sock, nbytes, where
        self._address, self._device = address, device
        self._agent: Any = _agent()
        try:
            self._peer = _text(self._agent.add_remote_agent(metadata))
        except Exception as error:  # the library's own classes, which are not public
            raise ProtocolError(f"{where} sent metadata that NIXL refuses: {error}") from error

    def read_into(self, view: memoryview | DeviceMemory, offset: int, timeout_s: float) -> None:
        check_destination(view, offset, self._nbytes)
        if self._agent is None:
            raise RelayUnreachable(f"the source at {self._where} is closed")
        if view.nbytes == 0:
            return
        if isinstance(view, DeviceMemory):
            self._read(view.address, view.nbytes, view.device, offset, timeout_s)
        else:
            with Address(view, writable=True) as held:
                self._read(held.start, held.nbytes, _HOST, offset, timeout_s)

    def close(self) -> None:
        self._agent = None
        self._sock.close()

    def _read(self, into: int, nbytes: int, device: int, offset: int, timeout_s: float) -> None:
        deadline, agent = time.monotonic() + timeout_s, self._agent
        with naming(self._where, timeout_s):
            if ended(self._sock):
                raise EOFError
            registered = handle = None
            try:
                registered = self._guarded(lambda: _register(agent, into, nbytes, device))
                handle = self._guarded(
                    lambda: agent.initialize_xfer(
                        "READ",
                        agent.get_xfer_descs([(into, nbytes, max(device, 0))], _kind(device)),
                        agent.get_xfer_descs(
                            [(self._address + offset, nbytes, max(self._device, 0))], _kind(self._device)
                        ),
                        self._peer,
                    )
                )
                state = [self._guarded(lambda: agent.transfer(handle))]

                def done() -> bool:
                    if state[0] == "PROC":
                        state[0] = self._guarded(lambda: agent.check_xfer_state(handle))
                    if state[0] == "ERR":
                        raise RelayUnreachable(f"{self._where} cannot be read from: NIXL's transfer failed")
                    return bool(state[0] == "DONE")

                await_transfer(done, self._sock, deadline)
                handle.release()
                agent.deregister_memory(registered)
            except BaseException:
                # A transfer that may still run must not write later: the agent, and its connections, go.
                self._agent = agent = handle = registered = None
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
