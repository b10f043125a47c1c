"""A relay: serves one host's replicas from shared memory and keeps the next relays of the tree supplied.

    consumes     offers of versions (a publisher, or the relay before it), leases and pulls of readers, control messages
    waits for    chunks; readers to leave the slot that a new version needs (deadline: `slot_timeout_s`)
    unblocked by the peer's next message, a lease's end, a change of the slot table, `close`

One thread for each connection, one for each next hop. What a connection holds ends with it, so a reader that is killed
gives its leases back.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Collection, Sequence

from tailrace.paramserver.errors import ParamServerError, PeerClosed, ProtocolError
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.machine.protocol import HostInterface, Thread
from tailrace.paramserver.relays.context import PullTurns, RelayContext
from tailrace.paramserver.relays.forward import Hops
from tailrace.paramserver.relays.session import Session
from tailrace.paramserver.relays.shelf import PARTIAL_S, TAKEOVER_S
from tailrace.paramserver.relays.slots import SlotTable
from tailrace.paramserver.wire.agreement import Means
from tailrace.paramserver.wire.authentication import HANDSHAKE_S, admit, check_token
from tailrace.paramserver.wire.channel import Channel, TrafficCounts, format_address, parse_address

STALL_S = 10.0
SLOT_TIMEOUT_S = 60.0
_MAX_CONNECTIONS = 512  # of peers that hold the token
_GO_ON = {errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# Linux passes errors of the network on, those of a firewall too, which concern the next connection alone: accept(2).
_GO_ON |= {errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH}
_MAX_UNPROVEN = 64  # of those that have not proved it yet: one more, and the oldest of them must go


class RelayServer:
    """A relay in this process. `tailrace.paramserver.RelayProcess` runs one in its own process.

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
        partial_s: how long what arrived of an interrupted version is kept for another sender to go on with.
        takeover_s: how long a transfer may stand still while another sender of it waits.
        transports: transports for chunks besides the connection itself, best first; None: shared memory if possible.
        codecs: to send fewer bytes with where that is faster, best first; None takes all that there are.
        always_encode: use them wherever they make a chunk smaller, faster or not.
        known_as: addresses, ``host:port``, under which peers dial it through a proxy or a translation of addresses; a peer's
            proof of the token counts for the address that it dialled.
        pullers: most readers and relays that pull from it over the network at once, the others wait for their turn; None: any.
        machine: the machine that it runs on.

    Raises:
        PortInUse, RelayNameTaken, AuthenticationFailed, TransportUnavailable: see their messages.
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
        partial_s: float = PARTIAL_S,
        takeover_s: float = TAKEOVER_S,
        transports: Sequence[str] | None = None,
        codecs: Sequence[str] | None = None,
        always_encode: bool = False,
        known_as: Collection[str] = (),
        pullers: int | None = None,
        machine: HostInterface = HOST,
    ) -> None:
        self._known_as = frozenset(format_address(*parse_address(address)) for address in known_as)
        self.name, self._token = name, check_token(token)
        self._stall_s, self._machine = stall_s, machine
        means = Means(transports, codecs, machine, host=host, always_encode=always_encode)
        self._listener = machine.listen(host, port)
        self.address = format_address(host, self._listener.port)
        try:
            self._owner = machine.claim(name)
            try:
                self._table = SlotTable(self._owner, slots, machine, partial_s=partial_s, takeover_s=takeover_s)
            except BaseException:
                self._owner.close()
                raise
        except BaseException:
            self._listener.close()
            raise
        self.cleaned = self._owner.cleaned
        self._context = RelayContext(
            name,
            token,
            self._table,
            means,
            TrafficCounts(),
            max_bytes,
            slot_timeout_s,
            stall_s,
            machine,
            PullTurns(pullers, machine),
        )
        self._hops = Hops(self._context)
        self._connections: dict[Channel, Thread | None] = {}
        self._unproven: dict[Channel, None] = {}  # of the connections, oldest first
        self._lock = machine.lock()
        self._closed = False
        self._acceptor = machine.spawn(self._accept, f"{name} acceptor")

    def close(self) -> None:
        """Stop serving and remove the shared memory. Readers keep the memory that they have mapped."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            connections = dict(self._connections)
        self._listener.close()
        self._table.close()
        self._hops.close(2 * HANDSHAKE_S)
        for channel in connections:
            channel.shutdown()
        for thread in (self._acceptor, *connections.values()):
            if thread is not None:
                thread.join(self._stall_s)
        self._owner.close()

    def __enter__(self) -> RelayServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted = self._listener.accept()
            except OSError as error:
                if error.errno in _GO_ON:
                    self._log(f"cannot accept a connection: {error.strerror}")
                    self._machine.sleep(0.1)  # out of descriptors: others must end first
                    continue
                raise
            if accepted is None:
                return
            stream, peer = accepted
            channel = Channel(stream, self._stall_s, peer)
            oldest = None
            with self._lock:
                if self._closed:
                    channel.close()
                    continue
                if len(self._unproven) >= _MAX_UNPROVEN:
                    oldest = next(iter(self._unproven))
                    del self._unproven[oldest]
                self._connections[channel] = self._unproven[channel] = None
            if oldest is not None:
                oldest.shutdown()
            try:
                thread = self._machine.spawn(functools.partial(self._serve, channel), f"{self.name} {peer}")
            except RuntimeError as error:  # out of threads: others must end first
                self._log(f"cannot serve {peer}: {error}")
                with self._lock:
                    self._connections.pop(channel, None)
                    self._unproven.pop(channel, None)
                channel.close()
                continue
            with self._lock:
                if channel in self._connections:
                    self._connections[channel] = thread

    def _serve(self, channel: Channel) -> None:
        session = Session(channel, self._context, self._hops)
        try:
            welcome = {"name": self.name, "pid": os.getpid(), **self._owner.introduction()}
            admit(channel, self._token, welcome, known_as=self._known_as, now=self._machine.now)
            with self._lock:
                self._unproven.pop(channel, None)
                crowded = len(self._connections) - len(self._unproven) > _MAX_CONNECTIONS
            if crowded:
                raise ProtocolError(f"found more than {_MAX_CONNECTIONS} connections, expected fewer")
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
                self._connections.pop(channel, None)
                self._unproven.pop(channel, None)

    def _log(self, text: str) -> None:
        sys.stderr.write(f"tailrace relay {self.name}: {text}\n")
