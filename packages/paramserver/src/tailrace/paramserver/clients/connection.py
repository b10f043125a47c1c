"""A reader's connection, to one of its relays at a time, and which relay is next when one fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tailrace.paramserver.errors import ChunkDamaged, ProtocolError, RelayTimeout, RelayUnreachable
from tailrace.paramserver.machine.protocol import HostInterface
from tailrace.paramserver.machine.segments import is_name
from tailrace.paramserver.wire.authentication import HANDSHAKE_S, check_token, connect
from tailrace.paramserver.wire.channel import Channel

#: One relay, several in order of preference, or something that knows them at any time.
Where = str | Sequence[str] | Callable[[], Sequence[str]]


class Addresses:
    """The relays that a reader may use, best first.

    Args:
        where: an address, several, or a callable that returns them: the living relays of a group.
    """

    def __init__(self, where: Where) -> None:
        self._where = where
        self._failed = set[str]()

    @property
    def single(self) -> bool:
        """Whether there is only one relay and never another."""
        return isinstance(self._where, str) or (not callable(self._where) and len(self._where) == 1)

    def best(self) -> str:
        """The first relay that has not failed since the last success.

        Raises:
            RelayUnreachable: there is none at all.
        """
        known = self._known()
        if not known:
            raise RelayUnreachable("found no relay to read from, expected at least one address")
        for address in known:
            if address not in self._failed:
                return address
        self._failed.clear()
        return known[0]

    def failed(self, address: str) -> bool:
        """Take note of a failure. Whether there is a relay that has not failed yet."""
        self._failed.add(address)
        if any(known not in self._failed for known in self._known()):
            return True
        self._failed.clear()
        return False

    def worked(self) -> None:
        """A relay answered: the others get another chance when it fails."""
        self._failed.clear()

    def _known(self) -> list[str]:
        if isinstance(self._where, str):
            return [self._where]
        return list(self._where() if callable(self._where) else self._where)


_T = TypeVar("_T")
_PAUSE_S = 0.1  # between two rounds over all relays
_LEAST_S = 2.0  # of patience with one relay, also when the deadline is near


class Connection:
    """Requests to the relay that works. Threads may share it; their requests take turns.

    Args:
        where: the relays.
        token: shared secret.
        same_host: whether they share memory with us; None finds out.
        stall_s: how long a relay may make no progress.
        machine: the machine that it runs on.
    """

    def __init__(
        self, where: Where, *, token: str, same_host: bool | None, stall_s: float, machine: HostInterface
    ) -> None:
        self.addresses = Addresses(where)
        self.lock, self.machine, self.stall_s = machine.lock(), machine, stall_s
        self.address = where if isinstance(where, str) else ""
        self.nonce = ""
        self._token, self._asked_same_host = check_token(token), same_host
        self._same_host = False
        self._channel: Channel | None = None

    def anywhere(self, act: Callable[[], _T], deadline: float | None = None) -> _T:
        """Do something with the relay that is connected, or with the next one, if it fails before or meanwhile.

        Args:
            act: uses `request`; it may be called several times.
            deadline: clock time until which relays that have failed are tried again. Each is tried once without it.

        Raises:
            RelayUnreachable, RelayTimeout, ProtocolError, ChunkDamaged: of the last relay that was tried.
        """
        while True:
            try:
                result = act()
            except (RelayUnreachable, RelayTimeout, ProtocolError, ChunkDamaged):
                self.drop()
                if self.addresses.single:
                    raise
                if not self.addresses.failed(self.address):
                    if deadline is None or self.machine.now() + _PAUSE_S >= deadline:
                        raise
                    self.machine.sleep(_PAUSE_S)
            else:
                self.addresses.worked()
                return result

    def request(self, message: dict[str, Any], wait_s: float, deadline: float | None = None) -> dict[str, Any]:
        """Ask the connected relay, or the best one.

        Args:
            wait_s: how long the relay may take to answer, beside the time that it may be stuck.
            deadline: of the whole undertaking: with other relays to turn to, one that is stuck gets half of what is left.
        """
        with self.lock:
            channel = self.open(deadline)
            try:
                return channel.request(message, wait_s + self._patience(deadline, self.stall_s))
            except (RelayUnreachable, RelayTimeout, ProtocolError):
                self.drop()
                raise

    def open(self, deadline: float | None = None) -> Channel:
        """Connect, unless a connection works."""
        with self.lock:
            if self._channel is not None and not self._channel.readable(0):  # readable between requests: peer closed
                return self._channel
            self.drop()
            self.address = self.addresses.best()
            channel, welcome = connect(
                self.machine,
                self.address,
                token=self._token,
                timeout_s=self._patience(deadline, HANDSHAKE_S),
                stall_s=self.stall_s,
            )
            self.nonce = str(welcome.get("nonce"))
            self._same_host = self._shares_memory(str(welcome.get("owner_segment")))
            self._channel = channel
            return channel

    def same_host(self, deadline: float | None = None) -> bool:
        """Whether the connected relay shares memory with this process."""
        with self.lock:
            self.open(deadline)
            return self._same_host

    @property
    def channel(self) -> Channel:
        """Channel of the last request.

        Raises:
            RelayUnreachable: it was closed since.
        """
        if self._channel is None:
            raise RelayUnreachable(f"the connection to the relay {self.address} is closed")
        return self._channel

    def is_current(self, channel: Channel) -> bool:
        """Whether this is still the connection."""
        return channel is self._channel

    def drop(self) -> None:
        """End the connection."""
        with self.lock:
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    def _patience(self, deadline: float | None, at_most: float) -> float:
        if deadline is None:
            return at_most
        left = deadline - self.machine.now()
        return min(at_most, max(_LEAST_S, left if self.addresses.single else left / 2))

    def _shares_memory(self, owner: str) -> bool:
        if self._asked_same_host is not None:
            return self._asked_same_host
        nonce = self.machine.owner_nonce(owner) if is_name(owner) else None
        return nonce is not None and nonce == self.nonce
