"""The next hops of a relay in the broadcast tree, each with its own forwarder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace.paramserver.machine.protocol import Lock
from tailrace.paramserver.relays.forward import Forwarder


class Hops:
    """Keeps a forwarder for each next hop. A hop that stays in the list keeps its connection and its transfer.

    Args:
        start: makes the forwarder to an address.
        lock: the lock of the list.
    """

    def __init__(self, start: Callable[[str], Forwarder], lock: Lock) -> None:
        self._start, self._lock = start, lock
        self._forwarders: dict[str, Forwarder] = {}
        self._ending: list[Forwarder] = []
        self._closed = False

    def set_next(self, addresses: Sequence[str]) -> None:
        """Deliver to these relays from now on, beginning with the versions that each lacks."""
        with self._lock:
            if self._closed:
                return
            before, self._forwarders = self._forwarders, {}
            for address in addresses:
                kept = before.pop(address, None)
                if kept is not None:
                    kept.retry()
                self._forwarders[address] = kept or self._start(address)
            self._end(list(before.values()))

    def status(self) -> dict[str, object]:
        """The next hops, and the last error on the way to each. `next` is one address, null, or a list of several."""
        with self._lock:
            hops = list(self._forwarders.values())
        addresses = [hop.address for hop in hops]
        errors = [hop.error for hop in hops if hop.error is not None]
        return {
            "next": addresses if len(addresses) > 1 else next(iter(addresses), None),
            "hops": {hop.address: hop.error for hop in hops},
            "forward_error": "; ".join(errors) if errors else None,
        }

    def close(self, timeout_s: float) -> None:
        """Stop all, and wait for their threads."""
        with self._lock:
            self._closed = True
            ending = [*self._ending, *self._forwarders.values()]
            self._end(list(self._forwarders.values()))
            self._forwarders = {}
        for forwarder in ending:
            forwarder.join(timeout_s)

    def _end(self, forwarders: Sequence[Forwarder]) -> None:
        self._ending = [forwarder for forwarder in self._ending if forwarder.alive()]
        for forwarder in forwarders:
            forwarder.close()
            self._ending.append(forwarder)
