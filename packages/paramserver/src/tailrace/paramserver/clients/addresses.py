"""The addresses of a reader's relays, and which one is next when one fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace.paramserver.errors import RelayUnreachable

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
