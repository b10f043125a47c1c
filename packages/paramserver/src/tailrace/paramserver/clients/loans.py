"""Memory of the relay on this host: lent to a publisher, whose version need not be copied again, or mapped by a reader."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tailrace.paramserver.errors import ParamServerError, ProtocolError, RelayUnreachable
from tailrace.paramserver.machine.protocol import HostInterface, MemorySegment
from tailrace.paramserver.machine.segments import is_name
from tailrace.paramserver.wire.authentication import HANDSHAKE_S, connect
from tailrace.paramserver.wire.channel import Channel

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Borrowed:
    """Memory that this publisher may fill. The relay no longer writes to it, even if the connection breaks.

    Args:
        id: the id with which it is offered.
        segment: the memory, mapped for writing.
        nonce: the nonce of the relay's incarnation that lent it.
        offered: a version in it was offered: it may be a slot's now, and is not to be written again.
    """

    id: int
    segment: MemorySegment
    nonce: str
    offered: bool = False


class Loans:
    """Borrows from one relay at a time, over its own connection, and keeps at most one piece ready.

    Args:
        token: shared secret.
        machine: the machine that it runs on.
    """

    def __init__(self, token: str, machine: HostInterface) -> None:
        self._token, self._machine = token, machine
        self._changed = machine.condition()
        self._mapped = MappedSegments(machine, writable=True)
        self._channel: Channel | None = None
        self._address = self.nonce = ""
        self._ready: Borrowed | None = None
        self._busy = self._closed = False
        self._elsewhere: str | None = None  # a relay that shares no memory with us
        self._doubtful = False  # the last request failed: the trainer does not wait for another one

    def take(self, nbytes: int) -> Borrowed | None:
        """The piece that is ready, if it is large enough; else None."""
        with self._changed:
            ready = self._ready
            if ready is None or ready.segment.size < nbytes:
                return None
            self._ready = None
            return ready

    def put_back(self, borrowed: Borrowed) -> None:
        """Take back a piece that was not filled."""
        with self._changed:
            if self._ready is None and borrowed.nonce == self.nonce and not borrowed.offered:
                self._ready = borrowed

    def fetch(
        self, address: str, nbytes: int, timeout_s: float, made_s: float, *, recycled: bool, patient: bool
    ) -> None:
        """Ask for memory, unless a piece is ready or a request is under way. Getting none is not an error.

        Args:
            address: the relay's address; empty for none.
            timeout_s: deadline in seconds for each answer of the relay.
            made_s: and for it to make new memory, once it has said that it does.
            recycled: only memory that the relay has already, so that its need does not grow.
            patient: ask even if the last request failed.
        """
        with self._changed:
            fits = self._ready is not None and self._ready.segment.size >= nbytes and address == self._address
            nowhere = not address or address == self._elsewhere
            if self._busy or self._closed or fits or nowhere or (self._doubtful and not patient):
                return
            self._busy = True
        failed = True
        try:
            self._ask(address, nbytes, timeout_s, made_s, recycled)
            failed = False
        except (ParamServerError, OSError) as error:  # the publisher has memory of its own
            _log.info("the relay %s lends no memory: %s", address, error)
            self._drop()
        finally:
            with self._changed:
                self._busy, self._doubtful = False, failed

    def close(self) -> None:
        """Give back all memory except what was offered."""
        with self._changed:
            self._closed, self._ready = True, None
            if self._channel is not None:
                self._channel.shutdown()
            if not self._busy:
                self._drop()
        self._mapped.close()

    def _ask(self, address: str, nbytes: int, timeout_s: float, made_s: float, recycled: bool) -> None:
        channel = self._open(address, timeout_s)
        if channel is None:
            return
        with self._changed:
            small, self._ready = self._ready, None
        if small is not None:
            channel.request({"op": "unstage", "loan": small.id}, timeout_s)
        answer = channel.request({"op": "stage", "nbytes": nbytes, "recycled": recycled}, timeout_s)
        if answer.get("making") is True:
            answer = channel.answer(timeout_s + made_s)
        loan = answer.get("loan")
        if loan is None:
            return
        if type(loan) is not int:
            raise ProtocolError(f"the relay {address} lent {str(loan)[:40]!r}, expected the number of a loan")
        segment = self._mapped.map(str(answer.get("segment")), self.nonce, answer.get("generation"), nbytes, address)
        with self._changed:
            if not self._closed:
                self._ready = Borrowed(loan, segment, self.nonce)

    def _open(self, address: str, timeout_s: float) -> Channel | None:
        """The connection to a relay of this host; None if it is elsewhere."""
        if self._channel is not None and address == self._address and not self._channel.readable(0):
            return self._channel
        self._drop()
        channel, welcome = connect(
            self._machine, address, token=self._token, timeout_s=min(timeout_s, HANDSHAKE_S), stall_s=timeout_s
        )
        owner, nonce = str(welcome.get("owner_segment")), str(welcome.get("nonce"))
        ours = self._machine.owner_nonce(owner) if is_name(owner) else None
        if ours is None or ours != nonce:
            channel.close()
            self._elsewhere = address
            return None
        with self._changed:
            self._channel, self._address, self.nonce = channel, address, nonce
        return channel

    def _drop(self) -> None:
        with self._changed:
            if self._channel is not None:
                self._channel.close()
            self._channel, self._ready, self._address, self.nonce = None, None, "", ""


class MappedSegments:
    """Segments stay mapped from lease to lease, until the relay gives the name to other memory.

    Args:
        machine: the machine that they are on.
        writable: whether they are mapped for writing.
    """

    def __init__(self, machine: HostInterface, *, writable: bool = False) -> None:
        self._machine, self._writable = machine, writable
        self._mapped: dict[str, tuple[tuple[str, int], MemorySegment]] = {}

    def map(self, name: str, nonce: str, generation: object, nbytes: int, relay: str) -> MemorySegment:
        """The segment that a relay named.

        Args:
            nonce: the nonce of the relay's present incarnation.
            generation: the generation of the segment within that incarnation.
            nbytes: the size that it must have.
            relay: its address, for messages.

        Raises:
            ProtocolError: this cannot be the name of a segment.
            RelayUnreachable: there is none of this name here, or one that is too small.
        """
        if not is_name(name) or type(generation) is not int:
            raise ProtocolError(f"the relay {relay} named the segment {name[:40]!r}")
        key = (nonce, generation)
        known = self._mapped.get(name)
        if known is not None and known[0] == key and known[1].size >= nbytes:
            return known[1]
        if known is not None:
            known[1].close()
            del self._mapped[name]
        try:
            segment = self._machine.attach(name, writable=self._writable)
        except OSError as error:
            raise RelayUnreachable(
                f"cannot map the shared memory of the relay {relay}: {error}; is it on this host?"
            ) from error
        if segment.size < nbytes:
            segment.close()
            raise RelayUnreachable(f"the shared memory of the relay {relay} is too small; was it restarted?")
        self._mapped[name] = (key, segment)
        return segment

    def close(self) -> None:
        """Unmap everything once no tensor refers to it."""
        for _, segment in self._mapped.values():
            segment.close()
        self._mapped.clear()
