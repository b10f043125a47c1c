"""A relay: serves one host's replicas from shared memory and keeps the next relay of the chain supplied.

    consumes     offers of versions (a publisher, or the relay before it), leases and pulls of readers, control messages
    waits for    chunks; readers to leave the slot that a new version needs (deadline: `slot_timeout_s`)
    unblocked by the peer's next message, a lease's end, a change of the slot table, `close`

One thread for each connection, one for forwarding. What a connection holds ends with it, so a reader that is killed
gives its leases back.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading

from tailrace.paramserver.address import format_address
from tailrace.paramserver.authentication import admit, check_token
from tailrace.paramserver.channel import Channel
from tailrace.paramserver.errors import ParamServerError, PeerClosed, PortInUse, RelayUnreachable
from tailrace.paramserver.forward import Forwarder
from tailrace.paramserver.segments import SegmentOwner
from tailrace.paramserver.session import Session
from tailrace.paramserver.slots import SlotTable

STALL_S = 10.0
SLOT_TIMEOUT_S = 60.0
_MAX_CONNECTIONS = 512


class RelayServer:
    """A relay in this process. `tailrace.paramserver.RelayProcess` runs one in a process of its own.

    Args:
        name: unique among the relays of this user on this host; segments that a crashed relay of the same name left
            are removed.
        host: interface to listen on.
        port: 0 takes a free one.
        token: shared secret.
        slots: versions held at once, 2 to 16.
        max_bytes: the largest version to accept; by default what shared memory holds.
        slot_timeout_s: how long a new version waits for the readers of the version that it replaces.
        stall_s: how long a peer may make no progress inside a transfer.

    Raises:
        PortInUse, RelayNameTaken, AuthenticationFailed: see their messages.
    """

    def __init__(
        self,
        name: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str,
        slots: int = 2,
        max_bytes: int | None = None,
        slot_timeout_s: float = SLOT_TIMEOUT_S,
        stall_s: float = STALL_S,
    ) -> None:
        self.name, self._token = name, check_token(token)
        self._max_bytes, self._slot_timeout_s, self._stall_s = max_bytes, slot_timeout_s, stall_s
        self._listener = _listen(host, port)
        self.address = format_address(host, self._listener.getsockname()[1])
        try:
            self._owner = SegmentOwner(name)
            try:
                self._table = SlotTable(self._owner, slots)
            except BaseException:
                self._owner.close()
                raise
        except BaseException:
            self._listener.close()
            raise
        self.cleaned = self._owner.cleaned
        self._forwarder = Forwarder(self._table, name, token, stall_s=stall_s, slot_timeout_s=slot_timeout_s)
        self._connections: dict[threading.Thread, Channel] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, name=f"{name} acceptor", daemon=True)
        self._acceptor.start()
        self._forwarder.start()

    def close(self) -> None:
        """Stop serving and remove the shared memory. Readers keep what they have mapped."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            connections = dict(self._connections)
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept on Linux; elsewhere close does
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
        self._listener.close()
        self._table.close()
        self._forwarder.close()
        for channel in connections.values():
            channel.shutdown()
        for thread in (self._acceptor, *connections):
            thread.join(timeout=self._stall_s)
        self._owner.close()

    def __enter__(self) -> RelayServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                if error.errno in (errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._log(f"cannot accept a connection: {error.strerror}")
                    threading.Event().wait(0.1)  # out of descriptors: others must end first
                    continue
                raise
            channel = Channel(sock, self._stall_s, format_address(*peer[:2]))
            thread = threading.Thread(target=self._serve, args=(channel,), name=f"{self.name} {peer}", daemon=True)
            with self._lock:
                if self._closed or len(self._connections) >= _MAX_CONNECTIONS:
                    channel.close()
                    continue
                self._connections[thread] = channel
                thread.start()

    def _serve(self, channel: Channel) -> None:
        session = Session(
            channel,
            self._table,
            self._forwarder,
            name=self.name,
            max_bytes=self._max_bytes,
            slot_timeout_s=self._slot_timeout_s,
        )
        try:
            admit(channel, self._token, {"name": self.name, "pid": os.getpid(), **self._owner.introduction()})
            while not self._closed:
                session.handle(channel.receive(None))
        except PeerClosed:
            pass  # the usual end
        except (ParamServerError, OSError) as error:
            if not self._closed:
                self._log(f"{channel.peer}: {error}")
        finally:
            session.release_all()
            channel.close()
            with self._lock:
                self._connections.pop(threading.current_thread(), None)

    def _log(self, text: str) -> None:
        sys.stderr.write(f"tailrace relay {self.name}: {text}\n")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"port {port} on {host} is in use; stop what listens there, or use port 0") from error
        raise RelayUnreachable(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
